#!/usr/bin/env python3
"""Four nodes with four fifths of their slots in use, and a fifth node without a shard in front of them: a rolling
restart of all, then kill -9 of each one after another, then one that stays down. Prints errors, wrong texts, the
longest pause of a stream and the seconds per node; fails on any error, on a wrong text while the rank layout is the
same, and on missed targets.

cargo build --release --locked --workspace && bench/scripts/serve/rolling.py [--topology tp4|dp2-tp2] [--tokens 400]
[--only restart,kill,down]
"""
import argparse
import asyncio
import math
import os
import re
import signal
import sys
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
GRACE_SECONDS = 8
SETTINGS = f"packed_shards = true\nthreads = 1\nexclude_after_ms = {GRACE_SECONDS * 1000}\n"
SLOTS = 4
# Targets in seconds: per node in a rolling restart; from a kill until all serve; for the rest after the grace period of
# a node that stays down; for the pause of a stream with two replicas.
NODE_SECONDS, BACK_SECONDS, REST_SECONDS, PAUSE_SECONDS = 10, 10, 10, 2
# RestartSec of the systemd unit.
RESTART_SECONDS = 1.0
DIFFERENT = 12


class Supervisor(threading.Thread):
    """Restarts daemons that ended, as systemd does."""

    def __init__(self, daemons):
        super().__init__(daemon=True)
        self.daemons, self.ended = list(daemons), threading.Event()
        # Number of starts of each daemon.
        self.starts = {daemon.name: 0 for daemon in daemons}

    def run(self):
        while not self.ended.wait(0.02):
            for daemon in list(self.daemons):
                if daemon.process and daemon.process.poll() is not None:
                    if self.ended.wait(RESTART_SECONDS):
                        return
                    daemon.process.stdin.close()
                    daemon.start()
                    self.starts[daemon.name] += 1


class Load:
    """Keeps a number of streams running, each with a known expected text."""

    def __init__(self, host, streams, tokens):
        self.host, self.streams, self.tokens = host, streams, tokens
        self.texts, self.errors, self.other_texts, self.pauses, self.first_tokens = {}, [], [], [], []
        self.done, self.stop = 0, asyncio.Event()

    def ask(self, index):
        which = index % DIFFERENT
        prompt = f"{bramble.PROMPTS[which % len(bramble.PROMPTS)]} {which}"
        return client.complete(self.host, prompt, self.tokens, model=MODEL, temperature=0.7, seed=which)

    async def expect(self):
        """Records the texts of an undisturbed cluster."""
        for begin in range(0, DIFFERENT, self.streams):
            part = range(begin, min(begin + self.streams, DIFFERENT))
            for index, answer in zip(part, await asyncio.gather(*(self.ask(index) for index in part))):
                if not answer.whole or answer.error:
                    sys.exit(f"request {index} of an undisturbed cluster: status {answer.status}, {answer.error or answer.body}")
                self.texts[index] = answer.text

    async def one(self, index):
        answer = await self.ask(index)
        begin = f"request {index}: status {answer.status}"
        if not answer.whole or answer.error:
            self.errors.append(f"{begin}, {answer.error or answer.body[:200]} after {len(answer.text)} bytes")
        elif answer.text != self.texts[index % DIFFERENT]:
            self.other_texts.append(f"{begin}, a different text: {answer.text!r} instead of {self.texts[index % DIFFERENT]!r}")
        self.pauses.append(max((later - now for now, later in zip(answer.tokens, answer.tokens[1:])), default=0))
        self.first_tokens.append(answer.first_token or 0)
        self.done += 1

    async def lane(self, lane):
        index = lane
        while not self.stop.is_set():
            await self.one(index)
            index += self.streams

    def report(self, what, seconds, pause_max=None, same_layout=True):
        """Prints the results since the last report; returns what is wrong with them."""
        pause, first = max(self.pauses, default=0), max(self.first_tokens, default=0)
        print(
            f"{what}: {seconds:.1f} s, {self.done} answers, {len(self.errors)} failed, {len(self.other_texts)} with a different text, "
            f"longest pause {pause:.2f} s, longest wait for a first token {first:.2f} s",
            flush=True,
        )
        failed = self.errors + (self.other_texts if same_layout else [])
        if pause_max and pause > pause_max:
            failed.append(f"a stream paused {pause:.2f} s, wanted at most {pause_max}")
        self.errors, self.other_texts, self.pauses, self.first_tokens, self.done = [], [], [], [], 0
        return [f"{what}: {line}" for line in failed]


def nodes(daemons):
    return ",".join(daemon.address for daemon in daemons)


def serve_all(daemons):
    """Whether all given nodes that belong to the topology serve it, and the topology has no others."""
    found = bramble.console("status", "--nodes", nodes(daemons))["nodes"]
    members = [node for node in found if node.get("topology")]
    serve = members and all(node["state"] in ("ready", "serving") for node in members)
    return serve and math.prod(int(number) for number in re.findall("[0-9]+", members[0]["topology"]["layout"])) == len(members)


async def until_serving(daemons, patience=60):
    """Returns the seconds until these nodes serve a topology that has no others."""
    begin = time.monotonic()
    while time.monotonic() < begin + patience:
        try:
            if await asyncio.to_thread(serve_all, daemons):
                return time.monotonic() - begin
        except bramble.Failed:
            pass
        await asyncio.sleep(0.2)
    sys.exit(f"not all nodes serve after {patience} s")


async def rolling(daemons, arguments):
    """Runs a rolling restart driven by the nodes; prints the seconds per node as this console sees them."""
    command = [bramble.program("console"), "restart", "--rolling", "--nodes", nodes(daemons), "--drain-ms", str(arguments.drain), "--yes", "--json"]
    watching = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    begin, times = time.monotonic(), []
    async for line in watching.stderr:
        text = line.decode().strip()
        if "is next" in text:
            times.append(time.monotonic())
    out = (await watching.stdout.read()).decode()
    code = await watching.wait()
    total = time.monotonic() - begin
    # A node that is back before the console polls again shares its line with the next node.
    print(f"rolling restart: {total:.1f} s, {total / len(daemons):.1f} s per node; moved to the next node after " + ", ".join(f"{at - begin:.1f}" for at in times) + " s")
    failed = [] if code == 0 else [f"the rolling restart ended with {code}: {out}"]
    return failed + ([] if total <= NODE_SECONDS * len(daemons) else [f"the rolling restart took {total:.1f} s"])


async def kept_down(daemons, supervisor, load):
    """Kills the last node, which stays down: the rest must serve without it."""
    victim, rest = daemons[-1], daemons[:-1]
    supervisor.daemons.remove(victim)
    begin = time.monotonic()
    victim.process.send_signal(signal.SIGKILL)
    await asyncio.sleep(GRACE_SECONDS)
    seconds = await until_serving(rest)
    print(f"{victim.name} kept down: the rest serve without it {seconds:.1f} s after the grace period of {GRACE_SECONDS} s")
    await asyncio.sleep(5)
    failed = load.report(f"{victim.name} kept down", time.monotonic() - begin, same_layout=False)
    return failed + ([] if seconds <= REST_SECONDS else [f"the rest served {seconds:.1f} s after the grace period"])


async def run(daemons, gateway, supervisor, arguments):
    replicas = 2 if arguments.topology.startswith("dp2") else 1
    load = Load(client.place(gateway), max(1, round(0.8 * SLOTS * replicas)), arguments.tokens)
    await load.expect()
    lanes = [asyncio.create_task(load.lane(lane)) for lane in range(load.streams)]
    failed, pause_max = [], PAUSE_SECONDS if replicas == 2 else None
    if "restart" in arguments.only:
        await asyncio.sleep(2)
        begin = time.monotonic()
        failed += await rolling(daemons, arguments)
        await until_serving(daemons)
        await asyncio.sleep(2)
        failed += load.report("rolling restart of all", time.monotonic() - begin, pause_max)
        missing = [name for name, starts in supervisor.starts.items() if starts != 1]
        failed += [f"{name} was started {supervisor.starts[name]} times instead of once" for name in missing]
    for victim in daemons if "kill" in arguments.only else []:
        begin = time.monotonic()
        victim.process.send_signal(signal.SIGKILL)
        await asyncio.sleep(0.5)
        seconds = await until_serving(daemons)
        await asyncio.sleep(3)
        print(f"{victim.name} killed, all serve again after {seconds + 0.5:.1f} s")
        failed += load.report(f"{victim.name} killed", time.monotonic() - begin, pause_max)
        failed += [] if seconds <= BACK_SECONDS else [f"{victim.name}: all served after {seconds:.1f} s"]
    if "down" in arguments.only:
        failed += await kept_down(daemons, supervisor, load)
    load.stop.set()
    await asyncio.gather(*lanes)
    failed += load.report("afterwards", 0, same_layout="down" not in arguments.only)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="tp4")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--drain", type=int, default=1000, help="drain timeout of a node in milliseconds")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["restart", "kill", "down"])
    parser.add_argument("--programs", help="folder of brambled and console [default: target/release]")
    arguments = parser.parse_args()
    if arguments.programs:
        bramble.RELEASE = os.path.abspath(arguments.programs)
    with bramble.Cluster(MODELS) as cluster:
        addresses = bramble.loopback(5)
        daemons = [cluster.add(f"pi{index + 1}", address, settings=SETTINGS, more=["--supervised"]) for index, address in enumerate(addresses[:4])]
        peers = "peers = [" + ", ".join(f'"{daemon.address}"' for daemon in daemons) + "]\n"
        gateway = cluster.add("front", addresses[4], settings=SETTINGS + peers)
        bramble.generate(daemons, MODEL, "ROMEO:", 2, "--topology", arguments.topology)
        supervisor = Supervisor(daemons)
        supervisor.start()
        try:
            failed = asyncio.run(run(daemons, gateway, supervisor, arguments))
        finally:
            supervisor.ended.set()
            supervisor.join()
    for line in failed[:20]:
        print(line, file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    bramble.command(main)
