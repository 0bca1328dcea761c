#!/usr/bin/env python3
"""Faults that strike a cluster while it streams: processes that are killed, stopped and restarted, links that are cut
(completely, in one direction, or only between two nodes), slow or loose, connections that are reset, state folders that
are damaged, emptied or read-only. Every node is a brambled with default settings in a separate network namespace. One
more node, to which no process fault applies, is in front and carries most of the streams.

usage: tests/netns/faults.py [--layouts tp3,tp4,pp2-tp2,dp2-tp2,prefill:tp1+decode:tp2] [--faults 200] [--seed S]
[--streams 4] [--kinds cut,reset,..] [--keep DIR] [--stop] [--json]

Violations: a text that differs from that of the undisturbed cluster in any token, or is longer; a request that hangs,
ends with two errors, without a typed error, or with an internal one; a process that ends by itself; 15 s after the end
of a fault, a member that does not serve or a fresh request without an answer. After a violation the logs of the nodes
and the story of the fault are kept below --keep, and the exit code is 1.

Needs root, ip, tc and ss.
cargo build --release --locked --workspace
"""
import argparse
import asyncio
import collections
import datetime
import json
import os
import re
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
import breakage
import streams
from network import Network

LAYOUTS = "tp3,tp4,pp2-tp2,dp2-tp2,prefill:tp1+decode:tp2"
MODEL = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
RECOVERY_SECONDS = 15
# A state must last this long, so that a delayed fault does not look like recovery.
STABLE_SECONDS = 0.5
# After this time the operator intervenes, and the campaign continues.
OPERATOR_SECONDS = 60
# After recovery, each request that was running must produce its next token within this time.
PROGRESS_SECONDS = 20
STORY_LINES = 400
# A busy machine must not count as a straggler. Everything else has its default.
SETTINGS = "exclude_slow_ms = 0\n"


def nodes_of(layout):
    """Number of members of a layout."""
    total = 0
    for group in re.split(r"\+", layout):
        count = 1
        for number in re.findall(r"(?:dp|pp|tp)(\d+)", group):
            count *= int(number)
        total += count
    return total


def peers(addresses):
    """The setting that names the nodes of a topology to a node in front of them."""
    return "peers = [" + ", ".join(f'"{address}"' for address in addresses) + "]\n"


class Campaign:
    """The faults of one layout."""

    model, settings = MODEL, SETTINGS

    def __init__(self, layout, arguments):
        self.layout, self.arguments = layout, arguments
        self.story, self.began, self.rows, self.violations, self.number = [], time.monotonic(), [], [], 0

    def tell(self, line):
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.story.append(f"{stamp} -- {line}")
        if self.arguments.verbose:
            print(f"   {stamp[11:23]} {line}", file=sys.stderr, flush=True)

    def start(self, network, cluster):
        """Daemons for the members, and one in front."""
        count = len(network.nodes) - 1
        addresses = [f"10.77.0.{node + 1}:9999" for node in range(count)]
        for node, address in enumerate(addresses):
            state = os.path.join(cluster.folder, f"pi{node + 1}")
            enter = [*network.enter(node), "unshare", "--mount", "sh", "-c", breakage.MOUNT, state]
            cluster.add(f"pi{node + 1}", address, enter=enter, settings=self.settings)
        cluster.add("front", f"10.77.0.{count + 1}:9999", enter=network.enter(count), settings=self.settings + peers(addresses))
        return cluster.daemons[:count], cluster.daemons[count]

    def traffic(self, doors, seed):
        """The streams of this campaign."""
        count = len(self.members)
        return streams.Streams(doors, os.path.basename(self.model), count, list(range(count)), self.arguments.streams, seed, "prefill" in self.layout, self.tell)

    def breaker(self, seed):
        """What applies the faults."""
        return breakage.Rig(self.network, self.members, self.front, seed, self.streams.downs, self.tell)

    def assign(self, *more):
        return bramble.generate(self.members, os.path.basename(self.model), "ROMEO:", 2, "--topology", self.layout, *more, enter=self.network.enter())

    def serve_all(self):
        """Whether all members serve the layout."""
        found = bramble.console("status", "--nodes", self.addresses, enter=self.network.enter(), patience=30)["nodes"]
        self.states = [f"{node.get('state')}{' (' + str(node.get('fault')) + ')' if node.get('fault') else ''}" for node in found]
        is_whole = [(node.get("topology") or {}).get("layout") == self.layout for node in found]
        return all(is_whole) and len(found) == len(self.members) and all(node.get("state") in ("ready", "serving") for node in found)

    async def until_serving(self, since, patience):
        """Seconds from `since` until all serve and a fresh request is answered, confirmed by a second check; `None` if
        that takes longer than `patience`."""
        prompt, found = streams.Prompt("Fresh:", 4), None
        while time.monotonic() < since + patience:
            is_good = False
            try:
                if await asyncio.to_thread(self.serve_all):
                    left = max(1, since + patience - time.monotonic())
                    answer = await asyncio.wait_for(self.streams.ask(len(self.members), prompt), left)
                    is_good = answer.whole and not answer.faults
                if is_good and found is not None and time.monotonic() > since + found + STABLE_SECONDS:
                    return found
                found = (time.monotonic() - since if found is None else found) if is_good else None
            except bramble.Failed as error:
                self.states, found = [str(error)], None
            except asyncio.TimeoutError:
                self.states, found = [*self.states, "a fresh request is not answered"], None
            await asyncio.sleep(0.15)
        return None

    async def watch(self):
        """Detects processes that end by themselves."""
        while True:
            for node, daemon in enumerate([*self.members, self.front]):
                process = daemon.process
                if node not in self.rig.away and process and process.poll() is not None:
                    self.violation(f"{daemon.name} ended by itself with {process.returncode}")
                    if node < len(self.members):
                        self.rig.down(node)
                        daemon.stop()
                        await asyncio.to_thread(self.rig.up, node)
            await asyncio.sleep(0.1)

    def violation(self, line):
        self.violations.append(f"fault {self.number}: {line}")
        self.tell(f"VIOLATION: {line}")
        print(f"{self.layout}, fault {self.number}: {line}", file=sys.stderr, flush=True)

    async def fault(self, kind):
        """Runs one fault and waits for the recovery."""
        self.story.clear()
        marks = [os.path.getsize(daemon.log) for daemon in [*self.members, self.front]]
        before, answers = len(self.violations) + len(self.streams.violations), len(self.streams.ended)
        await asyncio.sleep(self.rig.random.uniform(0.2, 1.2))
        self.tell(f"fault {self.number} of {self.layout}: {kind}")
        begun = time.monotonic()
        try:
            await asyncio.to_thread(getattr(self.rig, kind))
        except breakage.Stuck as error:
            self.violation(str(error))
            for node in list(self.rig.away):
                await asyncio.to_thread(self.rig.up, node)
        end = time.monotonic()
        ran = [(stream, stream.heard) for stream in self.streams.running if stream.began <= end]
        seconds = await self.until_serving(end, RECOVERY_SECONDS)
        row = {"kind": kind, "fault_seconds": round(end - begun, 2), "recovery_seconds": seconds, "operator": False}
        if seconds is None:
            self.violation(f"{kind}: not recovered within {RECOVERY_SECONDS} s: {'; '.join(self.states)}")
            late = await self.until_serving(end, OPERATOR_SECONDS)
            row["late_seconds"] = late
            if late is None:
                row["operator"] = True
                await self.help()
        self.tell(f"all serve after {row['recovery_seconds'] or row.get('late_seconds') or 'an operator assigned again,'} s")
        await self.progress(ran)
        self.violations += [f"fault {self.number}, {kind}: {line}" for line in self.streams.violations]
        self.streams.violations.clear()
        ended = self.streams.ended[answers:]
        row["answers"], row["codes"] = len(ended), dict(collections.Counter(stream.code for stream in ended))
        row["violations"] = self.violations[before:]
        self.rows.append(row)
        if row["violations"]:
            self.keep(marks)
        print(f"{self.layout} {self.number:3} {kind:17} {row['fault_seconds']:5.1f} s, recovered in "
              f"{'-' if seconds is None else f'{seconds:.1f}'} s, {row['codes']}{'  VIOLATION' if row['violations'] else ''}", flush=True)

    async def help(self):
        """Intervenes as an operator would."""
        self.tell("the operator assigns again")
        try:
            await asyncio.to_thread(self.assign)
        except bramble.Failed as error:
            for node, daemon in enumerate(self.members):
                self.rig.down(node)
                daemon.stop()
            for node in range(len(self.members)):
                await asyncio.to_thread(self.rig.up, node)
            self.tell(f"that failed ({error}); all were restarted")
            if await self.until_serving(time.monotonic(), OPERATOR_SECONDS) is None:
                await asyncio.to_thread(self.assign)

    async def progress(self, ran):
        """Every request that was running at the end of the fault must end or get another token."""
        deadline = time.monotonic() + PROGRESS_SECONDS
        waiting = [stream for stream, heard in ran if stream.ended is None and stream.heard == heard]
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            waiting = [stream for stream, heard in ran if stream.ended is None and stream.heard == heard]
        for stream in waiting:
            self.violation(f"{stream} had no token for {PROGRESS_SECONDS} s after all served again")

    def keep(self, marks):
        """Keeps the story of the fault, merged with the logs of its nodes."""
        name = re.sub(r"[:+]", "-", f"{self.layout}-{self.arguments.seed}")
        folder = os.path.join(self.arguments.keep, name, str(self.number))
        os.makedirs(folder, exist_ok=True)
        lines = list(self.story)
        for daemon, mark in zip([*self.members, self.front], marks):
            said = daemon.text(mark)
            with open(os.path.join(folder, daemon.name + ".log"), "w") as file:
                file.write(said)
            lines += [f"{line[:27]} {daemon.name} {line[27:].strip()}" for line in said.splitlines() if re.match(r"\d{4}-", line)]
        lines.sort()
        with open(os.path.join(folder, "story.txt"), "w") as file:
            file.write("\n".join(lines) + "\n")
        if self.arguments.verbose:
            print("\n".join(lines[:STORY_LINES]), file=sys.stderr)
        print(f"   story: {folder}/story.txt", file=sys.stderr, flush=True)

    async def strike(self):
        await self.streams.expect()
        tasks = [asyncio.create_task(self.streams.run()), asyncio.create_task(self.watch())]
        try:
            kinds = list(self.arguments.kinds)
            weights = [breakage.KINDS[kind] for kind in kinds]
            due = list(self.arguments.first)
            while self.number < self.arguments.faults:
                self.number += 1
                await self.fault(due.pop(0) if due else self.rig.random.choices(kinds, weights)[0])
                for task in tasks:
                    if task.done():
                        task.result()
                if self.arguments.stop and self.violations:
                    break
            self.streams.stop.set()
            await tasks[0]
            self.violations += self.streams.violations
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def run(self):
        """Runs all faults; returns the results."""
        count = nodes_of(self.layout)
        with Network(count + 1) as network, bramble.Cluster(os.path.dirname(self.model)) as cluster:
            self.network, doors = network, streams.Doors(network)
            self.members, self.front = self.start(network, cluster)
            self.addresses, self.states = ",".join(daemon.address for daemon in self.members), []
            self.assign()
            seed = f"{self.arguments.seed}-{self.layout}"
            self.streams = self.traffic(doors, seed)
            self.rig = self.breaker(seed)
            try:
                asyncio.run(self.strike())
            except KeyboardInterrupt:
                # Still reports the results so far.
                self.arguments.layouts.clear()
            finally:
                doors.close()
        return self.report()

    def report(self):
        ended = self.streams.ended
        kinds = collections.defaultdict(list)
        for row in self.rows:
            kinds[row["kind"]].append(row)
        return {
            "layout": self.layout, "seed": self.arguments.seed, "faults": len(self.rows), "minutes": round((time.monotonic() - self.began) / 60, 1),
            "kinds": {kind: figures(rows) for kind, rows in sorted(kinds.items())}, "all": figures(self.rows),
            "answers": len(ended), "right": sum(stream.code == "right" for stream in ended), "tied": self.streams.tied,
            "hangs": sum(stream.code == "hang" for stream in ended), "wrong": sum(stream.code == "wrong" for stream in ended),
            "violations": self.violations, "rows": self.rows,
        }


def figures(rows):
    """Counts and recovery times of a list of faults."""
    times = sorted(row["recovery_seconds"] for row in rows if row["recovery_seconds"] is not None)
    at = lambda share: round(times[min(len(times) - 1, int(share * len(times)))], 1) if times else None
    codes = collections.Counter()
    for row in rows:
        codes.update({code: count for code, count in row["codes"].items() if code != "right"})
    return {"faults": len(rows), "p50": at(0.5), "p95": at(0.95), "max": round(times[-1], 1) if times else None,
            "not_recovered": sum(row["recovery_seconds"] is None for row in rows), "operator": sum(row["operator"] for row in rows), "errors": dict(codes)}


def show(found):
    print(f"\n{found['layout']}, seed {found['seed']}: {found['faults']} faults in {found['minutes']} minutes, {found['answers']} answers, {found['right']} complete and "
          f"right ({found['tied']} with another of two equal tokens), {found['hangs']} hangs, {found['wrong']} wrong, {len(found['violations'])} violations")
    print(f"{'kind':17} {'faults':>6} {'p50 s':>6} {'p95 s':>6} {'max s':>6} {'late':>5} {'operator':>8}  answers that ended otherwise")
    for kind, one in [*found["kinds"].items(), ("all", found["all"])]:
        times = " ".join(f"{'-' if one[name] is None else one[name]:>6}" for name in ("p50", "p95", "max"))
        others = ", ".join(f"{code} {count}" for code, count in sorted(one["errors"].items()))
        print(f"{kind:17} {one['faults']:6} {times} {one['not_recovered']:5} {one['operator']:8}  {others}")
    for line in found["violations"][:20]:
        print(f"  {line}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--layouts", "--layout", type=listed, default=LAYOUTS.split(","))
    parser.add_argument("--faults", type=int, default=200, help="number of faults per layout")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--streams", type=int, default=4, help="number of concurrent streams, one of them through members")
    parser.add_argument("--kinds", type=listed, default=list(breakage.KINDS))
    parser.add_argument("--first", type=listed, default=[], help="kinds of the first faults, in order")
    parser.add_argument("--keep", default=os.path.join(bramble.ROOT, "target", "faults"), metavar="DIR")
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--programs", help="folder of brambled and console [default: target/release]", metavar="DIR")
    arguments = parser.parse_args()
    if arguments.programs:
        bramble.RELEASE = os.path.abspath(arguments.programs)
    unknown = [kind for kind in [*arguments.kinds, *arguments.first] if kind not in breakage.KINDS]
    if unknown:
        sys.exit(f"unknown kinds of faults: {', '.join(unknown)}; choose from {', '.join(breakage.KINDS)}")
    print(f"seed {arguments.seed}", flush=True)
    found = []
    while arguments.layouts:
        layout = arguments.layouts.pop(0)
        one = Campaign(layout, arguments).run()
        found.append(one)
        if not arguments.json:
            show(one)
    if arguments.json:
        print(json.dumps(found))
    sys.exit(any(one["violations"] for one in found))


if __name__ == "__main__":
    bramble.command(main)
