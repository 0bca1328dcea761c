#!/usr/bin/env python3
"""Chaos on real processes: faults of every kind strike clusters of all layouts, with and without keys, under a steady
load whose texts are known. Writes each fault as a JSON line and prints the table of all of them.

usage: tests/chaos/chaos.py [--minutes M | --faults N] [--cases tp3,hybrid,..] [--links none,encrypted,..] [--kinds kill,..]
[--seed S] [--each N] [--results FILE] [--short] [--hold X] [--keep DIR] [--programs DIR]
       tests/chaos/chaos.py --table FILE .. [--compact FILE.csv]
       tests/chaos/chaos.py --list

After each fault: every request has ended within its deadline with the right text or one typed error; no token is wrong
or doubled; a new request is answered and the topology of the operator serves again, within 15 s; no process has ended
by itself. After each cluster: no request is left at a head, no descriptor or thread at the gateway node. `back` is the
time from the end of a fault until a new request is answered and the topology serves. Exit code 1 if any of these
conditions fails, or if p95 of `back` is above 10 s. --table adds up the faults of several runs. --short: about three
minutes, with the date as the seed.

Needs root, ip, tc, ss, nft, cc, pgrep and a memory control group.
cargo build --release --locked --workspace
"""
import argparse
import asyncio
import datetime
import os
import random
import re
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [FOLDER, *(os.path.join(FOLDER, "..", name) for name in ("netns", "python", "serve"))]
import bed
import bramble
import client
import faults
import harm
import models
import records
from traffic import Traffic

# The load of other programs on this machine must not count as a fault of a node.
HEALTH = os.path.join(bramble.ROOT, "daemon", "src", "health", "fixtures", "pi5")
LINKS = ("none", "encrypted", "authenticated", "plain")
# A member that is away or slow is excluded soon; the texts of `llama` do not depend on the ranks that compute them.
MOVING = "exclude_after_ms = 3000\nexclude_slow_ms = 0\n"
SLOW = "exclude_after_ms = 0\nexclude_slow_ms = 3000\nretry_slow_ms = 2000\nsilent_ms = 30000\nstall_ms = 60000\n"
STEADY = "exclude_after_ms = 0\nexclude_slow_ms = 0\n"
# Longest time for which a head may still list requests after the streams have ended.
QUIET_SECONDS = 5
# Longest time for the gateway node's picture of the cluster.
CLUSTER_SECONDS = 10
# Faults that one cluster gets before the next one starts.
EACH = 20
# Clusters, faults of each, and the time after which no fault begins.
SHORT_CASES, SHORT_EACH, SHORT_SECONDS = 4, 5, 150


class Case:
    """A layout with a model, settings, and the kinds of faults that suit them."""

    def __init__(self, name, layout, kinds, settings=STEADY, model="bard", others=(), witness=False, most=EACH):
        self.name, self.layout, self.kinds, self.settings = name, layout, kinds, settings
        self.model, self.others, self.witness, self.most = model, list(others), witness, most


CASES = [
    *(Case(layout, layout, harm.STEADY) for layout in ("tp3", "tp4", "pp2-tp2", "dp2-tp2", "prefill:tp1+decode:tp2")),
    Case("pp3", "pp3-tp1", harm.STEADY),
    Case("hybrid", "tp2", harm.STEADY, model="qwen35"),
    Case("state space", "pp2-tp1", harm.STEADY, model="granitehybrid"),
    Case("tp3, votes", "tp3", harm.MOVING, MOVING, "llama", ["pp3", "dp3"]),
    Case("dp2-tp2, votes", "dp2-tp2", harm.MOVING, MOVING, "llama", ["tp4", "pp2-tp2", "pp4"]),
    Case("tp2, witness", "tp2", {**harm.MOVING, "fight": 1}, MOVING, "llama", ["pp2", "dp2"], witness=True),
    # The time until a straggler is tried again doubles each time.
    Case("tp3, breaker", "tp3", harm.SLOW, SLOW, "llama", most=3),
]


class Chaos(faults.Campaign):
    """The faults of one cluster."""

    def __init__(self, case, links, arguments, results):
        super().__init__(case.layout, arguments)
        self.case, self.links, self.results, self.model = case, links, results, models.path(case.model)

    def start(self, network, cluster):
        """Members, and one node in front; with a witness, another one that holds no shard."""
        count = len(network.nodes) - 1
        self.bed = bed.Bed(cluster.folder, self.layout, os.path.basename(self.model), self.links, self.case.others)
        addresses = [f"10.77.0.{node + 1}:9999" for node in range(count + 1)]
        # Nodes whose disks are filled have small ones.
        is_packed = "full_disk" not in self.case.kinds
        settings = self.case.settings + f"packed_shards = {str(is_packed).lower()}\nthreads = 1\n"
        more = {"run": self.bed.program()}
        if self.case.witness:
            # The gateway node holds no shard either.
            settings += f'witness = "{addresses[count]}"\n'
        for node in range(count):
            enter, own = self.bed.node(f"pi{node + 1}", is_packed)
            cluster.add(f"pi{node + 1}", addresses[node], enter=[*network.enter(node), *enter], settings=settings + own, more=["--supervised", "--health-root", HEALTH], **more)
        cluster.add("front", addresses[count], enter=network.enter(count), settings=STEADY + faults.peers(addresses[:count]) + self.bed.settings("front"), **more)
        return cluster.daemons[:count], cluster.daemons[count]

    def traffic(self, doors, seed):
        count = len(self.members)
        moves = self.case.settings != STEADY
        return Traffic(self.case.model == "bard", moves, doors, os.path.basename(self.model), count, list(range(count)), self.arguments.streams, seed, "prefill" in self.layout, self.tell)

    def breaker(self, seed):
        return harm.Harm(self.bed, self.arguments.hold, self.network, self.members, self.front, seed, self.streams.downs, self.tell)

    def serve_all(self):
        """Asks the gateway node first, which costs no process, then each member."""
        asked = client.ask("127.0.0.1", "GET", "/cluster", connect=self.streams.doors.to(len(self.members)))
        answer = asyncio.run(asyncio.wait_for(asked, CLUSTER_SECONDS))
        nodes = {node.get("address"): node for node in answer.json()["nodes"]} if answer.status == 200 and not answer.error else {}
        members = [nodes.get(daemon.address, {}) for daemon in self.members]
        self.states = [f"{node.get('state')} {node.get('fault') or ''} as the gateway node sees it" for node in members]
        serve = all(node.get("state") in ("ready", "serving") and (node.get("topology") or {}).get("layout") == self.layout for node in members)
        return serve and super().serve_all()

    async def fault(self, kind):
        if self.number == 1:
            self.before = client.resources(self.front)
        await super().fault(kind)
        row = self.rows[-1]
        if row["recovery_seconds"] is not None:
            row["recovery_seconds"] = round(row["recovery_seconds"], 2)
        self.results.add({
            "at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "layout": self.case.name, "links": self.links,
            "kind": kind, "seed": self.arguments.seed, "number": self.number, "fault_seconds": row["fault_seconds"],
            "back_seconds": row["recovery_seconds"], "late_seconds": row.get("late_seconds"), "operator": row["operator"],
            "ended": {**row["codes"], **self.streams.others_since()}, "violations": row["violations"],
        })
        if time.monotonic() > self.arguments.end:
            self.arguments.faults = self.number

    async def progress(self, ran):
        """An answer that is no stream shows no progress before its end."""
        await super().progress([(stream, heard) for stream, heard in ran if getattr(stream.prompt, "is_stream", True)])

    async def strike(self):
        await super().strike()
        self.left()

    def left(self):
        """Requests, descriptors and threads that are left when all streams have ended. They are recorded with the
        violations since the last fault, if there are any."""
        lines = self.violations[sum(len(row["violations"]) for row in self.rows):]
        begin = time.monotonic()
        while True:
            heads = bramble.console("requests", "--nodes", self.addresses, enter=self.network.enter(), is_good=(0, 1, 2, 3, 4))
            running = [one["id"] for head in heads.get("heads", []) for one in head["running"]]
            now = client.resources(self.front)
            grown = {name: (self.before[name], now[name]) for name in ("files", "threads") if now[name] > self.before[name] + 8}
            if not (running or grown) or time.monotonic() > begin + QUIET_SECONDS:
                break
            time.sleep(0.3)
        for what, found in (("requests are left at heads", running), ("descriptors or threads are left at the gateway node", grown)):
            if found:
                lines.append(f"{what}: {found}")
                self.violation(lines[-1])
        if lines:
            self.results.add({**self.results.rows[-1], "kind": records.LEFT, "violations": lines, "ended": {}})

    def run(self):
        try:
            return super().run()
        finally:
            self.bed.remove()


def pairs_of(arguments):
    """Each case with each of its links, if it has any of the wanted kinds of faults and its model can be made."""
    found = []
    for case in CASES:
        if case.name not in arguments.cases:
            continue
        if models.can_make(case.model):
            found += [(case, links) for links in arguments.links if kinds_of(case, links, arguments)]
        else:
            print(f"SKIPPED {case.name}: the programs of the tests are not built: cargo build --release --locked --workspace", flush=True)
    return found or sys.exit("no case has these kinds of faults with these links; see --list")


def clusters(arguments):
    """Cases with their links, endlessly: each case once before any case again."""
    chance, pairs = random.Random(arguments.seed), pairs_of(arguments)
    while True:
        chance.shuffle(pairs)
        links_of = {}
        for case, links in pairs:
            links_of.setdefault(case.name, []).append((case, links))
        for turn in range(len(arguments.links)):
            names = [name for name in sorted(links_of) if turn < len(links_of[name])]
            for name in chance.sample(names, len(names)):
                yield links_of[name][turn]


def kinds_of(case, links, arguments):
    kinds = {**case.kinds, **(harm.KEYED if links != "none" and case.model in ("bard", "qwen35") else {})}
    return {kind: weight for kind, weight in kinds.items() if not arguments.only or kind in arguments.only}


def strike(arguments):
    """Runs clusters until the time is over or the faults are done; returns the rows."""
    results = records.Records(arguments.results)
    begin, number = time.monotonic(), 0
    arguments.end = begin + arguments.minutes * 60 if arguments.minutes else float("inf")
    for case, links in clusters(arguments):
        kinds = kinds_of(case, links, arguments)
        left = arguments.count - len(results.rows) if arguments.count else arguments.each
        if left <= 0 or time.monotonic() > arguments.end - 5 or (arguments.short and number >= SHORT_CASES):
            break
        number += 1
        arguments.faults, arguments.kinds, arguments.first = min(arguments.each, case.most, left), kinds, []
        arguments.layouts = [case.layout]
        # --cases NAME --links LINKS --seed S repeats the faults of one cluster.
        arguments.seed = arguments.base + number - 1
        harm.breakage.KINDS.update(kinds)
        print(f"== {case.name}, links {links}, {arguments.faults} faults, seed {arguments.seed}", flush=True)
        found = Chaos(case, links, arguments, results).run()
        for text in found["violations"]:
            print(f"VIOLATION {case.name}, {links}: {text}", flush=True)
        if not arguments.layouts or (arguments.stop and found["violations"]):
            break
    return results.rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(";") if ";" in text else text.split(",")
    names = [case.name for case in CASES]
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--faults", dest="count", type=int)
    parser.add_argument("--cases", type=listed, default=names, help="names of --list; separate them with ; if one contains a comma")
    parser.add_argument("--links", type=listed, default=list(LINKS))
    parser.add_argument("--kinds", dest="only", type=listed, default=[])
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--each", type=int, default=EACH, help="faults of one cluster")
    parser.add_argument("--results", metavar="FILE", help="file to which JSON lines are appended")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--hold", type=float, default=0.6, help="factor of the durations of faults")
    parser.add_argument("--keep", default=os.path.join(bramble.ROOT, "target", "chaos", "stories"), metavar="DIR")
    parser.add_argument("--programs", metavar="DIR")
    parser.add_argument("--stop", action="store_true", help="stop at the first cluster with a violation")
    for name in ("--short", "--verbose", "--list"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--table", nargs="+", metavar="FILE")
    parser.add_argument("--compact", metavar="FILE", help="with --table: write the faults in the compact form, which --table also reads")
    arguments = parser.parse_args()
    if arguments.list:
        return print("\n".join(f"{case.name:24} {case.layout:24} {case.model:14} {', '.join(kinds_of(case, 'encrypted', arguments))}" for case in CASES))
    if arguments.table:
        rows = records.read(arguments.table)
        if arguments.compact:
            records.write_compact(rows, arguments.compact)
        return finish(rows)
    known = {kind for case in CASES for kind in kinds_of(case, "encrypted", argparse.Namespace(only=[]))}
    unknown = {*arguments.cases} - {*names} | {*arguments.links} - {*LINKS} | {*arguments.only} - known
    if unknown:
        sys.exit(f"unknown cases, links or kinds of faults: {', '.join(sorted(unknown))}; see --list; links are {', '.join(LINKS)}")
    if arguments.programs:
        bramble.RELEASE = os.path.abspath(arguments.programs)
    lacking = bed.missing()
    if os.geteuid() or lacking:
        sys.exit(f"chaos needs root{' and ' + ', '.join(lacking) if lacking else ''}")
    if arguments.short:
        arguments.each, arguments.minutes = SHORT_EACH, SHORT_SECONDS / 60
    if arguments.seed is None:
        arguments.seed = int(time.strftime("%Y%m%d")) if arguments.short else int(time.time())
    arguments.base = arguments.seed
    os.nice(2)
    bed.own_mounts()
    print(f"seed {arguments.seed}", flush=True)
    finish(strike(arguments))


def finish(rows):
    if not rows:
        sys.exit("no fault was injected")
    print(records.table(rows))
    missed = records.broken(rows)
    for text in missed:
        print(f"VIOLATION {text}", file=sys.stderr)
    print(f"{len(records.faults(rows))} faults, {len(missed)} violations")
    sys.exit(bool(missed))


if __name__ == "__main__":
    bramble.command(main)
