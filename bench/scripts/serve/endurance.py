#!/usr/bin/env python3
"""Many requests of all kinds over four daemons and one in front of them, with occasional faults: each answer must be
as wanted or end with one typed error, and memory, descriptors, threads and disk of the daemons must stay constant.

cargo build --release --locked --workspace && bench/scripts/serve/endurance.py [--requests 1000] [--topology dp2-tp2]
[--concurrency 8] [--minutes M] [--fault-every 0] [--seed S] [--kinds chat,..] [--results FILE] [--programs DIR]

--fault-every N: a fault after every N requests: kill -9 of the third or fourth daemon, which starts again, or a pause of
2.5 s of any of the four. Growth is measured per process, from a tenth of all requests after its start to its last
sample, without the keys and values that it stores in memory. Exit code 1: a wrong answer, an error outside the typed
list or without a fault, or growth of more than 16 MB, 4 descriptors or 2 threads.
"""
import argparse
import asyncio
import collections
import json
import os
import random
import re
import signal
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client
import faults
import kinds

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
SETTINGS = "threads = 1\nexclude_after_ms = 0\nexclude_slow_ms = 0\n"
GROWTH_BYTES, GROWTH_FILES, GROWTH_THREADS = 16 << 20, 4, 2
# Codes with which a request may end after a fault, and no other.
TYPED = (
    "node_lost", "not_serving", "not_head", "draining", "drain_ended", "session_lost", "node_unreachable", "links_failed", "model_unknown",
    "queue_full", "queue_timeout", "request_timeout", "shutting_down",
    # The forms of the same errors in the other APIs, and in streams that have begun.
    "overloaded_error", "api_error", "stream_error", "status_503", "status_429",
)
# A typed error counts as the result of a fault, or of the start, for this long afterwards: for a minute after a node did
# not answer, gateways do not report that no node has a model.
FAULT_SECONDS = 65
CANCELLED_SHARE = 0.05
SAMPLE_SECONDS = 2
# Failures that are printed.
SHOWN = 20


class Run:
    """The load and its figures. Requests go to the fifth daemon and the first two, which no fault kills."""

    def __init__(self, daemons, arguments):
        self.daemons, self.arguments, self.chance = daemons, arguments, random.Random(arguments.seed)
        self.hosts = [client.place(daemon) for daemon in (daemons[4], daemons[0], daemons[1])]
        self.counts, self.errors, self.failed, self.texts = collections.Counter(), collections.Counter(), [], {}
        self.end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
        self.samples, self.numbers, self.done = collections.defaultdict(list), iter(range(arguments.requests)), 0
        self.fault_until, self.faults, self.is_over = time.monotonic(), collections.Counter(), False

    async def one(self, number):
        """Sends a request of a random kind; a few clients leave before the end."""
        chance = random.Random(f"{self.arguments.seed} {number}")
        name = chance.choice(self.arguments.kinds)
        kind, host = kinds.KINDS[name], self.hosts[number % len(self.hosts)]
        seed = chance.randrange(kinds.REPEATED)
        prompt, tokens = f"{bramble.PROMPTS[seed % len(bramble.PROMPTS)]} {seed}", 1 + seed % 12
        body = kind.body(MODEL, prompt, tokens, seed) if kind.body else None
        began = time.monotonic()
        request = asyncio.create_task(client.ask(host, kind.method, kind.path, body))
        if chance.random() < CANCELLED_SHARE:
            await asyncio.wait([request], timeout=chance.uniform(0, 0.2))
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            self.counts["(cancelled)"] += 1
            return
        answer = await asyncio.wait_for(request, 120)
        self.counts[name] += 1
        try:
            text = kind.judge(answer)
            if name in kinds.COMPARED and self.texts.setdefault((name, seed), text) != text:
                raise kinds.Wrong(f"another text than before: {text!r} instead of {self.texts[name, seed]!r}")
        except kinds.Typed as error:
            code = str(error)
            self.errors[code] += 1
            if code not in TYPED:
                self.fail(f"request {number} ({name}): {code} is not a typed error of a fault: {answer.faults or answer.body[:200]}")
            elif began > self.fault_until + FAULT_SECONDS:
                self.fail(f"request {number} ({name}): {code} without a fault: {answer.faults or answer.body[:200]}")
        except (kinds.Wrong, ValueError, KeyError, IndexError, TypeError) as error:
            self.fail(f"request {number} ({name}) at {host}: {error!r}")

    def fail(self, line):
        """Records a failure; prints the first ones at once."""
        self.failed.append(line)
        if len(self.failed) <= SHOWN:
            print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)

    async def lane(self):
        for number in self.numbers:
            if time.monotonic() > self.end:
                return
            try:
                await self.one(number)
            except asyncio.TimeoutError:
                self.fail(f"request {number} hangs")
            self.done += 1

    async def strike(self):
        """One fault after every so many requests."""
        due = self.arguments.fault_every
        while due and not self.is_over:
            if self.done < due:
                await asyncio.sleep(0.05)
                continue
            due += self.arguments.fault_every
            self.fault_until = float("inf")
            if self.chance.random() < 0.5:
                daemon = self.daemons[self.chance.choice([2, 3])]
                self.faults["kill -9"] += 1
                await asyncio.to_thread(daemon.stop)
                await asyncio.sleep(1)
                await asyncio.to_thread(daemon.start)
            else:
                process = self.daemons[self.chance.randrange(4)].process
                self.faults["pause"] += 1
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(2.5)
                process.send_signal(signal.SIGCONT)
            self.fault_until = time.monotonic()

    async def stored(self, daemon):
        """Bytes of keys and values that a daemon stores in memory, which may grow to a sixteenth of it."""
        answer = await asyncio.wait_for(client.ask(client.place(daemon), "GET", "/metrics"), SAMPLE_SECONDS)
        found = re.search(rb"^bramble_kv_store_bytes (\S+)$", answer.body, re.M)
        is_on_disk = re.search(rb"^bramble_kv_store_on 1$", answer.body, re.M)
        return int(float(found[1])) if found and not is_on_disk else 0

    async def sample(self):
        """Memory, descriptors, threads and disk of each process, by its id."""
        while not self.is_over:
            for daemon in self.daemons:
                try:
                    found = {**client.resources(daemon), "stored": await self.stored(daemon)}
                    found["own"] = found["resident"] - found["stored"]
                    self.samples[daemon.name, daemon.process.pid].append((self.done, found))
                except (OSError, KeyError, AttributeError, asyncio.TimeoutError):
                    # It has just been killed, or is stopped.
                    continue
            await asyncio.sleep(SAMPLE_SECONDS)

    async def tell(self):
        begin = time.monotonic()
        while not self.is_over:
            await asyncio.sleep(30)
            rate = self.done / (time.monotonic() - begin)
            ended = f"{sum(self.faults.values())} faults, {sum(self.errors.values())} typed errors, {len(self.failed)} failed"
            print(f"{self.done} requests, {rate:.1f} per second, {ended}", file=sys.stderr, flush=True)

    async def run(self):
        await client.until_healthy(self.hosts)
        others = [asyncio.create_task(task) for task in (self.strike(), self.sample(), self.tell())]
        await asyncio.gather(*(self.lane() for _ in range(self.arguments.concurrency)))
        await asyncio.sleep(2 * SAMPLE_SECONDS + 6)
        self.is_over = True
        await asyncio.gather(*others[:2])
        others[2].cancel()

    def grown(self):
        """Figures of each process that ran long enough; records growth as failures."""
        rows, warm = [], self.arguments.requests // 10
        for (name, pid), samples in sorted(self.samples.items()):
            settled = [found for done, found in samples if done >= samples[0][0] + warm]
            if len(settled) < 3:
                continue
            then, now = settled[0], settled[-1]
            rows.append({"node": name, "process": pid, "requests": samples[-1][0] - samples[0][0], "then": then, "now": now,
                         "resident_mb": [[done, round(found["resident"] / 1e6, 1)] for done, found in samples[::1 + len(samples) // 60]]})
            bounds = {"own": GROWTH_BYTES, "disk": GROWTH_BYTES, "files": GROWTH_FILES, "threads": GROWTH_THREADS}
            for what in [what for what, bound in bounds.items() if now[what] > then[what] + bound]:
                self.fail(f"{name} grows: {what} {then[what]} -> {now[what]}")
        if not rows:
            self.fail("no process was measured for long enough to judge its growth: use more --requests")
        return rows


def show(row):
    then, now = row["then"], row["now"]
    sizes = ", ".join(f"{name} {then[key] / 1e6:.1f} -> {now[key] / 1e6:.1f} MB" for name, key in (("resident", "resident"), ("of it stored keys and values", "stored"), ("peak", "peak"), ("disk", "disk")))
    return f"{row['node']} (process of {row['requests']} requests): {sizes}, files {then['files']} -> {now['files']}, threads {then['threads']} -> {now['threads']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--minutes", type=float, help="end after this time at the latest")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--topology", default="dp2-tp2")
    parser.add_argument("--fault-every", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(kinds.KINDS), help="only these kinds of requests")
    parser.add_argument("--results", metavar="FILE", help="figures, with the memory of each process over time, as JSON")
    parser.add_argument("--programs", metavar="DIR")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.kinds if name not in kinds.KINDS]
    if unknown:
        sys.exit(f"unknown kinds of requests: {', '.join(unknown)}; choose from {', '.join(kinds.KINDS)}")
    if arguments.programs:
        bramble.RELEASE = os.path.abspath(arguments.programs)
    begin = time.monotonic()
    with bramble.Cluster(MODELS) as cluster:
        addresses = bramble.loopback(5)
        settings = SETTINGS + ("" if arguments.fault_every else bramble.QUIET)
        daemons = [cluster.add(f"pi{index + 1}", address, settings=settings) for index, address in enumerate(addresses[:4])]
        daemons.append(cluster.add("front", addresses[4], settings=settings + faults.peers(addresses[:4])))
        bramble.generate(daemons[:4], MODEL, "ROMEO:", 2, "--topology", arguments.topology)
        run = Run(daemons, arguments)
        asyncio.run(run.run())
        rows = run.grown()
    seconds = time.monotonic() - begin
    for row in rows:
        print(show(row))
    print("requests: " + ", ".join(f"{name} {count}" for name, count in sorted(run.counts.items())))
    print(f"typed errors: {dict(run.errors)}; faults: {dict(run.faults)}")
    print(f"{run.done} requests in {seconds / 60:.1f} minutes, {len(run.failed)} failures")
    if arguments.results:
        with open(arguments.results, "w") as file:
            json.dump({"requests": run.done, "seconds": seconds, "counts": run.counts, "errors": run.errors, "faults": run.faults, "processes": rows, "failed": run.failed}, file)
    sys.exit(1 if run.failed else 0)


if __name__ == "__main__":
    bramble.command(main)
