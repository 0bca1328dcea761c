#!/usr/bin/env python3
"""Upgrades a cluster of release 0.1 to this version, replica by replica, under load; --back also downgrades it again.

usage: tests/upgrade/groups.py --old FOLDER [--topology dp2-tp2] [--tokens 200] [--back] [--json]

--old: a folder with brambled and console of the other release:

    git worktree add --detach target/old 015bad0
    cargo build --release --locked --manifest-path target/old/Cargo.toml -p bramble-daemon -p bramble-console
    tests/upgrade/groups.py --old target/old/target/release --back

The commands are those of docs/upgrade.md (the blocks "upgrade-node" and "upgrade-console"), for one replica after the
other; `sudo systemctl restart brambled` becomes SIGTERM and a start of the other release with the same files. Streams
keep 80 % of the slots busy. They use the HTTP APIs of all nodes except those that are about to restart (unless
--everywhere), as behind a load balancer; a client whose connection is refused tries another node. Fails if a request
ends without its whole answer, or if the ranks of a replica serve with different releases.
"""
import argparse
import asyncio
import os
import random
import re
import signal
import sys
import time

sys.path += [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", folder) for folder in ("netns", "python", "serve")]
import bramble
import client
import faults

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
# Slots of a replica; four fifths of them are in use.
SLOTS, SHARE = 4, 0.8
SETTINGS = "threads = 1\npacked_shards = true\ndrain_ms = 20000\nexclude_after_ms = 60000\nsilent_ms = 5000\n"
# RestartSec of the unit, and TimeoutStopSec, after which systemd kills.
RESTART_SECONDS, STOP_SECONDS = 1.0, 30
PATIENCE_SECONDS = 180


def commands(block):
    """The lines of a block of docs/upgrade.md."""
    with open(os.path.join(bramble.ROOT, "docs", "upgrade.md"), encoding="utf-8") as file:
        found = re.search(rf"^```sh {block}\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    return [line.split("  #")[0].strip() for line in found[1].splitlines()]


class Load:
    """Streams on all nodes; every answer must be whole."""

    def __init__(self, hosts, streams, tokens, old):
        self.hosts, self.streams, self.tokens, self.old, self.everywhere = hosts, streams, tokens, old, False
        self.lost, self.waits, self.pauses, self.done, self.refused = [], [], [], 0, 0
        self.chance, self.stop, self.under_way = random.Random(1), asyncio.Event(), {host: 0 for host in hosts}

    async def ask(self, number):
        """Sends one request, to another node only if a node refuses it, as a load balancer does."""
        prompt = f"{bramble.PROMPTS[number % len(bramble.PROMPTS)]} {number}"
        begin = time.monotonic()
        while True:
            host = self.chance.choice(self.hosts)
            self.under_way[host] += 1
            try:
                answer = await asyncio.wait_for(client.complete(host, prompt, self.tokens, model=MODEL, temperature=0.7, seed=number), PATIENCE_SECONDS)
            except asyncio.TimeoutError:
                answer = client.Answer()
                answer.error, answer.end = f"no end within {PATIENCE_SECONDS} s", PATIENCE_SECONDS
            finally:
                self.under_way[host] -= 1
            is_refused = answer.status == 0 and (answer.error or "").startswith("ConnectionRefusedError")
            # A node that stops or has just started answers 503 with Retry-After to requests that it has not begun.
            is_later = answer.status in (429, 503) and "retry-after" in answer.headers
            if not (is_refused or is_later) or time.monotonic() - begin > PATIENCE_SECONDS:
                return host, begin, answer
            self.refused += 1
            await asyncio.sleep(0.1 if is_refused else 1)

    async def one(self, number):
        host, begin, answer = await self.ask(number)
        if not answer.whole or answer.error or answer.finish not in ("length", "stop"):
            self.lost.append(f"request {number} at {host}: status {answer.status}, {answer.error or answer.body[:200]}, {len(answer.tokens)} pieces, ended by {answer.finish}")
        self.waits.append(time.monotonic() - begin - answer.end + (answer.first_token or 0))
        self.pauses.append(max((later - now for now, later in zip(answer.tokens, answer.tokens[1:])), default=0))
        self.done += 1

    async def lane(self, lane):
        number = lane
        while not self.stop.is_set():
            await self.one(number)
            number += self.streams

    def report(self, what, seconds):
        """Prints the results since the last report and returns them."""
        found = {
            "what": what, "seconds": round(seconds, 1), "answers": self.done, "lost": len(self.lost), "tried_again": self.refused,
            "longest_wait": round(max(self.waits, default=0), 2), "longest_pause": round(max(self.pauses, default=0), 2),
        }
        print(
            f"{what}: {seconds:.1f} s, {self.done} answers, {len(self.lost)} lost, {self.refused} sent again, longest wait for a first "
            f"token {found['longest_wait']} s, longest pause of a stream {found['longest_pause']} s",
            file=sys.stderr, flush=True,
        )
        for line in self.lost[:5]:
            print(f"   {line}", file=sys.stderr)
        self.lost, self.waits, self.pauses, self.done, self.refused = [], [], [], 0, 0
        return found


def nodes(daemons):
    return ",".join(daemon.address for daemon in daemons)


def status(daemons):
    """The nodes' reports; a node that does not answer has an error instead."""
    return bramble.console("status", "--nodes", nodes(daemons), is_good=(0, 3))["nodes"]


async def until(what, is_so, patience=PATIENCE_SECONDS):
    """Waits for a condition on the nodes' reports; returns the seconds."""
    begin, last = time.monotonic(), ""
    while True:
        try:
            if await asyncio.to_thread(is_so):
                return time.monotonic() - begin
        except bramble.Failed as error:
            last = f": {error}"
        if time.monotonic() - begin > patience:
            sys.exit(f"{what}: not after {patience} s{last}")
        await asyncio.sleep(0.3)


def mixed(replicas, reports):
    """Replicas that serve while their ranks run different releases."""
    by_name, found = {report["name"]: report for report in reports if "name" in report}, []
    for number, replica in enumerate(replicas):
        serve = all(by_name.get(daemon.name, {}).get("state") in ("ready", "serving") for daemon in replica)
        programs = [daemon.daemon[0] for daemon in replica]
        if serve and len(set(programs)) > 1:
            found.append(f"replica {number} serves with {programs}")
    return found


async def watch(daemons, replicas, wrong):
    """Checks the replicas once a second, until it is cancelled."""
    while True:
        programs = [daemon.daemon[0] for daemon in daemons]
        try:
            found = mixed(replicas, await asyncio.to_thread(status, daemons))
        except bramble.Failed:
            found = []
        # A restart during the question makes its answer meaningless.
        if programs == [daemon.daemon[0] for daemon in daemons]:
            wrong += found
        await asyncio.sleep(1)


async def restart(daemon, release):
    """`systemctl restart brambled` after the package of the other release was installed."""
    daemon.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + STOP_SECONDS
    while daemon.process.poll() is None and time.monotonic() < end:
        await asyncio.sleep(0.02)
    await asyncio.to_thread(daemon.stop)
    daemon.daemon = [os.path.join(release, "brambled")]
    await asyncio.to_thread(daemon.start)


async def change(daemons, replicas, release, load):
    """Changes the release of one replica after the other with the commands of docs/upgrade.md."""
    results, what = [], "to the old release" if release == load.old else "to this release"
    for number, replica in enumerate(replicas):
        if not load.everywhere and len(replicas) > 1:
            restarting = [client.place(daemon) for daemon in replica]
            load.hosts = [client.place(daemon) for daemon in daemons if daemon not in replica]
            while any(load.under_way[host] for host in restarting):
                await asyncio.sleep(0.1)
        begin = time.monotonic()
        for line in commands("upgrade-node"):
            assert line == "sudo systemctl restart brambled", f"docs/upgrade.md has another command: {line}"
            await asyncio.gather(*(restart(daemon, release) for daemon in replica))
        started = time.monotonic()
        for line in commands("upgrade-console"):
            await until(line, lambda: serves(line, daemons))
        end, load.hosts = time.monotonic(), [client.place(daemon) for daemon in daemons]
        print(f"replica {number}: {started - begin:.1f} s until its nodes have started, {end - started:.1f} s more until it serves", file=sys.stderr)
        await asyncio.sleep(3)
        results.append(load.report(f"replica {number} {what}", time.monotonic() - begin) | {"serves_after": round(end - begin, 1)})
    return results


def serves(line, daemons):
    """Whether a command of the console ends well and reports that all nodes serve."""
    words = line.split()
    assert words[0] == "console", line
    found = bramble.console(*words[1:], "--nodes", nodes(daemons))["nodes"]
    return all(report["state"] in ("ready", "serving") for report in found)


async def go(daemons, replicas, arguments, new):
    load = Load([client.place(daemon) for daemon in daemons], max(1, round(SHARE * SLOTS * len(replicas))), arguments.tokens, arguments.old)
    load.everywhere = arguments.everywhere
    await client.until_healthy(load.hosts)
    lanes = [asyncio.create_task(load.lane(lane)) for lane in range(load.streams)]
    wrong = []
    watching = asyncio.create_task(watch(daemons, replicas, wrong))
    await asyncio.sleep(arguments.before)
    results = [load.report("before", arguments.before)]
    for release in [new, arguments.old] if arguments.back else [new]:
        results += await change(daemons, replicas, release, load)
    load.stop.set()
    await asyncio.gather(*lanes)
    watching.cancel()
    return results + [load.report("afterwards", 0)], wrong


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--old", required=True)
    parser.add_argument("--topology", default="dp2-tp2")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--before", type=float, default=5, help="seconds of load before the first command")
    parser.add_argument("--back", action="store_true")
    parser.add_argument("--everywhere", action="store_true", help="also send requests to nodes that are about to restart")
    arguments = parser.parse_args()
    arguments.old, new = os.path.abspath(arguments.old), bramble.RELEASE
    count = faults.nodes_of(arguments.topology)
    width = count // int((re.search(r"dp(\d+)", arguments.topology) or [0, 1])[1])
    with bramble.Cluster(MODELS) as cluster:
        addresses = bramble.loopback(count)
        daemons = []
        for index, address in enumerate(addresses):
            peers = faults.peers(other for other in addresses if other != address)
            daemon = bramble.Daemon(f"pi{index + 1}", address, cluster.folder, MODELS, settings=SETTINGS + peers, more=["--supervised"])
            daemon.daemon = [os.path.join(arguments.old, "brambled")]
            cluster.daemons.append(daemon)
            daemons.append(daemon)
            daemon.start()
        # An operator with the old console has assigned the topology; without it, the new one does.
        if os.path.exists(os.path.join(arguments.old, "console")):
            bramble.RELEASE = arguments.old
        # Release 0.1 asks no question, and knows no --yes.
        bramble.console("generate", "--nodes", nodes(daemons), "--model", MODEL, "--prompt", "ROMEO:", "--max-tokens", "2", "--topology", arguments.topology)
        bramble.RELEASE = new
        replicas = [daemons[begin : begin + width] for begin in range(0, count, width)]
        results, wrong = asyncio.run(go(daemons, replicas, arguments, new))
    wrong += [f"{result['what']}: {result['lost']} lost" for result in results if result["lost"]]
    bramble.finish({"phases": results}, wrong, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
