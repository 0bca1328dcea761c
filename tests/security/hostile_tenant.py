#!/usr/bin/env python3
"""A well-behaved client next to a hostile one: the requests, sessions and files of the security review (S1, S3, S4, S6,
S7, S9, S10) against four daemons with a cluster key, each in a memory control group of 512 MB.

usage: tests/security/hostile_tenant.py [--attacks S1,S3,S4,S6,S7,S9,S10] [--requests 200] [--short]
[--topology dp2-tp2] [--json]

Wanted: no daemon ends; none exceeds 1.25 times its idle memory plus 128 MB; no request of the client fails, and the p99
of its TTFT is at most twice that next to busy processes that use as much processor time as the attack cost daemons and
attacker. --requests is the number of the client's requests during each attack. With --short (for .ci/run, 2 minutes)
each attack lasts a few seconds, and all are judged together with a factor of 3. The model is the demo model with its
layers repeated until the first token takes at least 50 ms. Exit code 1 if a target is missed.

cargo build --release --locked --workspace
"""
import argparse
import asyncio
import collections
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(FOLDER, "..", "python"), os.path.join(FOLDER, "..", "serve")]
import attacks
import bramble
import client
import gguf
import groups
import tenancy

DEMO = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
LIMIT, NODES = 512 << 20, 4
# The client's minimum TTFT, prompt length (nearly the context of 512, different each time) and time limit.
TTFT_MIN, PROMPT_WORDS, REQUEST_SECONDS = 0.050, 230, 60
MEMORY_FACTOR, MEMORY_MORE, TTFT_FACTOR = 1.25, 128 << 20, 2.0
# With about 20 requests per attack the p99 is nearly the maximum: the short form only detects a client that is locked
# out.
SHORT_TTFT_FACTOR = 3.0
# Maximum number of repetitions of the demo model's layers.
TIMES_MAX = 64
SHORT_SECONDS, PHASE_SECONDS_MAX = 5, 240
WORDS = "now is the winter of our discontent made glorious summer by this sun of York and all clouds that lowered upon house in deep bosom ocean".split()
ALL = ["S1", "S3", "S4", "S6", "S7", "S9", "S10"]
# The template bombs of the short form.
SHORT_LOAD, SHORT_CHAT = ["not", "elif", "1+1"], ["itself", "x ~ x", "sort"]
SETTINGS = "exclude_slow_ms = 0\nmdns = false\n"


class Tenants:
    """The daemons, and the record of their failures."""

    def __init__(self, cluster, key, models, arguments):
        self.cluster, self.key, self.models, self.arguments = cluster, key, models, arguments
        self.dead, self.failed, self.rows, self.groups, self.number = [], [], [], [], 0
        self.model, self.idle, self.peak = None, {}, {}
        for index, address in enumerate(bramble.loopback(NODES)):
            group = groups.Group(f"pi{index + 1}", LIMIT)
            self.groups.append(group)
            cluster.add(f"pi{index + 1}", address, enter=group.enter(), settings=f'key_file = "{key}"\n{SETTINGS}')
        self.daemons = cluster.daemons
        self.hosts = [client.place(daemon) for daemon in self.daemons]
        if not all(group.folder for group in self.groups):
            print(f"SKIPPED the limit of {LIMIT >> 20} MB: {self.groups[0].reason}; memory is only monitored", flush=True)

    def assign(self, model):
        bramble.generate(self.daemons, model, "ROMEO:", 2, "--topology", self.arguments.topology, "--key", self.key)

    def deepen(self):
        """Makes and assigns a model whose first token takes long enough."""
        times = 1
        while True:
            self.model = f"deep-{times}.gguf"
            gguf.File(DEMO).write(os.path.join(self.models, self.model), times=times)
            self.assign(self.model)
            alone = asyncio.run(self.requests(seconds=None, count=20))
            # The minimum, so that a busy machine does not make a small model look large enough.
            quickest = min(alone)
            if quickest >= TTFT_MIN:
                return alone
            os.remove(os.path.join(self.models, self.model))
            times = max(times + 1, min(4 * times, int(1.2 * times * TTFT_MIN / quickest)))
            if times > TIMES_MAX:
                sys.exit(f"the first token takes {1e3 * quickest:.1f} ms; at least {1e3 * TTFT_MIN:.0f} ms are needed, and repeating the layers {TIMES_MAX} times is not enough")

    async def requests(self, seconds, count, until=None):
        """The client's times to the first token, one request after another, for `seconds` or until there are `count`.
        """
        times, begin = [], time.monotonic()
        is_over = lambda: time.monotonic() - begin >= (seconds or PHASE_SECONDS_MAX) or (count and len(times) >= count) or (until and until())
        while not is_over():
            self.number += 1
            words = [WORDS[(self.number * 7 + step * (1 + self.number % 11)) % len(WORDS)] for step in range(PROMPT_WORDS)]
            prompt = f"{self.number} " + " ".join(words)
            try:
                answer = await asyncio.wait_for(client.complete(self.hosts[0], prompt, 2, temperature=0), REQUEST_SECONDS)
            except asyncio.TimeoutError:
                self.failed.append(f"a request of the client did not end within {REQUEST_SECONDS} s")
                times.append(REQUEST_SECONDS)
                continue
            if answer.error or not answer.whole:
                self.failed.append(f"a request of the client: status {answer.status}, {answer.error or answer.body[:200] or 'the stream broke off'}")
                times.append(max(answer.end, REQUEST_SECONDS))
                await asyncio.sleep(0.2)
            else:
                # An answer may have no text: then its end counts as its first token.
                times.append(answer.first_token or answer.end)
        return times

    def look(self):
        """Records daemons that have ended and restarts them; returns whether there were any."""
        ended = [daemon for daemon in self.daemons if daemon.process.poll() is not None]
        for daemon in ended:
            last = [line for line in daemon.text().splitlines() if line.strip()][-1:]
            self.dead.append(f"{daemon.name} ended with {daemon.process.returncode}: {' '.join(last)[:200]}")
            daemon.stop()
            daemon.start()
        return bool(ended)

    def mend(self):
        """Waits until all daemons run and serve the client's model again."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.look()
            try:
                self.assign(self.model)
                return
            except (bramble.Failed, subprocess.TimeoutExpired) as error:
                print(f"   {str(error)[:300]}", file=sys.stderr)
                time.sleep(1)
        sys.exit("the daemons do not serve again after an attack")

    def memory(self):
        """Updates the peak memory of each daemon since the last reset."""
        for daemon in self.daemons:
            self.peak[daemon.name] = max(self.peak.get(daemon.name, 0), tenancy.status(daemon.process.pid, "VmHWM"))

    def rest(self):
        """Resets the peaks and records the idle memory."""
        for daemon in self.daemons:
            tenancy.forget_peak(daemon.process.pid)
            self.idle.setdefault(daemon.name, tenancy.status(daemon.process.pid, "VmRSS"))

    def used(self):
        """Processor seconds used by the daemons and their children."""
        return sum(bramble.processor_seconds(daemon.process.pid) for daemon in self.daemons)

    def children(self):
        """The largest memory of a daemon's children, over the groups."""
        own = {daemon.process.pid for daemon in self.daemons}
        return max((sum(tenancy.status(pid, "VmRSS") for pid in group.processes() if pid not in own) for group in self.groups), default=0)


def attackers(tenants, name, seconds):
    """Starts the process of an attack."""
    if name == "S7":
        nodes = ",".join(daemon.address for daemon in tenants.daemons)
        command = [bramble.program("hostile_viewer"), "--key", tenants.viewer, "--nodes", nodes, "--model", tenants.model, "--seconds", f"{seconds}"]
    else:
        command = [sys.executable, os.path.join(FOLDER, "attacks.py"), name, "--hosts", ",".join(tenants.hosts), "--seconds", f"{seconds}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def watched(tenants, process, row):
    """Monitors daemons and memory until the attack is over."""
    while process.poll() is None:
        tenants.look()
        tenants.memory()
        row["children"] = max(row["children"], tenants.children())
        await asyncio.sleep(0.05)


def attack(tenants, name, model=None, what=None):
    """Measures the client during an attack, and next to processes that are equally busy; appends a row of the table."""
    arguments = tenants.arguments
    # An attack ends when the client has finished its requests: it is started for longer than that takes.
    count, most = (None, SHORT_SECONDS) if arguments.short else (arguments.requests, PHASE_SECONDS_MAX)
    row = {"attack": what or name, "children": 0}
    dead, failed = len(tenants.dead), len(tenants.failed)
    tenants.rest()
    used, ours, begin = tenants.used(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()

    async def both():
        process = attackers(tenants, name, most)
        watching = asyncio.create_task(watched(tenants, process, row))
        # Lets the attack start.
        await asyncio.sleep(0.5)
        row["ttft"] = await tenants.requests(most - 0.5, count, until=lambda: process.poll() is not None or len(tenants.dead) > dead + 8)
        if not arguments.short:
            process.terminate()
        await watching
        row["said"] = (process.stdout.read() or "").strip()
        process.stdout.close()

    asyncio.run(both())
    tenants.memory()
    seconds, now = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    # The cost of the client's own requests is not part of the attack.
    own = len(row["ttft"]) * tenants.cost
    row["rate"] = max(0.0, (max(0, tenants.used() - used - own) + (now.ru_utime + now.ru_stime - ours.ru_utime - ours.ru_stime)) / seconds)
    row["dead"], row["failed"] = tenants.dead[dead:], tenants.failed[failed:]
    if row["dead"] or row["failed"]:
        tenants.mend()
    busy = tenancy.Busy(row["rate"])
    try:
        row["busy"] = asyncio.run(tenants.requests(seconds if arguments.short else None, count))
    finally:
        busy.end()
    tenants.rows.append(row)
    tell(row)


def tell(row):
    at = lambda times, share: 1e3 * bramble.quantile(times, share) if times else float("nan")
    print(f"{row['attack']:24} {row['rate']:5.2f} cores  {len(row['ttft']):4} requests, TTFT p50 {at(row['ttft'], 0.5):7.1f} p99 {at(row['ttft'], 0.99):8.1f} ms; busy processes "
          f"p50 {at(row['busy'], 0.5):7.1f} p99 {at(row['busy'], 0.99):8.1f}; {len(row['dead'])} daemons ended, {len(row['failed'])} of the client's failed; "
          f"children {row['children'] >> 20} MB; {row['said'][:200]}", flush=True)
    for line in [*row["dead"][:4], *row["failed"][:2]]:
        print(f"   {line}", flush=True)


def code(error):
    """The error code of a failed console."""
    return (re.findall(r'"code": ?"(\w+)"', error.out or "") or [str(error)[:100]])[0]


def load_bombs(tenants, names):
    """S4, at load: every node loads a file whose template is a bomb; it must be refused or load."""
    source, dead = gguf.File(DEMO), len(tenants.dead)
    for name in names:
        path = os.path.join(tenants.models, "bomb.gguf")
        source.write(path, {gguf.TEMPLATE: gguf.string(attacks.AT_LOAD[name])})
        tenants.rest()
        try:
            tenants.assign("bomb.gguf")
            ending = "loaded"
        except bramble.Failed as error:
            ending = code(error)
        except subprocess.TimeoutExpired:
            ending = "no answer"
            tenants.failed.append(f"the template {name!r} at load: the console got no answer")
        tenants.memory()
        tenants.look()
        print(f"S4 at load, {name:12} {ending}; {len(tenants.dead) - dead} daemons ended", flush=True)
        for line in tenants.dead[dead:]:
            print(f"   {line}", flush=True)
        dead = len(tenants.dead)
        os.remove(path)
    tenants.mend()


def chat_bombs(tenants, names):
    """S4, at the first chat: the client's model has a template that is a bomb."""
    plain, source = tenants.model, gguf.File(os.path.join(tenants.models, tenants.model))
    for name in names:
        tenants.model = "chat-bomb.gguf"
        source.write(os.path.join(tenants.models, tenants.model), {gguf.TEMPLATE: gguf.string(attacks.AT_CHAT[name])})
        try:
            tenants.assign(tenants.model)
        except bramble.Failed as error:
            print(f"S4 at a chat, {name:12} refused at load: {code(error)}", flush=True)
            if tenants.look():
                tenants.failed.append(f"the template {name!r} ended a daemon at load")
            tenants.model = plain
            tenants.mend()
        else:
            attack(tenants, "S4", what=f"S4 {name}")
        tenants.model = plain
        os.remove(os.path.join(tenants.models, "chat-bomb.gguf"))
    tenants.mend()


def judge(tenants):
    """The missed targets."""
    missed = [*tenants.dead, *tenants.failed]
    for daemon, group in zip(tenants.daemons, tenants.groups):
        idle, peak = tenants.idle[daemon.name], tenants.peak.get(daemon.name, 0)
        bound = int(MEMORY_FACTOR * idle) + MEMORY_MORE
        print(f"{daemon.name}: {idle >> 20} MB idle, at most {peak >> 20} MB, bound {bound >> 20} MB{'' if peak <= bound else '  MISSED'}; {group.kills()} killed by the kernel")
        missed += [] if peak <= bound else [f"{daemon.name} had {peak >> 20} MB, its bound is {bound >> 20}"]
        missed += [f"the kernel killed {group.kills()} processes of {daemon.name} for lack of memory"] if group.kills() else []
    pools = [("all", tenants.rows)] if tenants.arguments.short else [(name, [row for row in tenants.rows if row["attack"].split()[0] == name]) for name in ALL]
    for name, rows in pools:
        if not rows:
            continue
        ttft, busy = ([time for row in rows for time in row[key]] for key in ("ttft", "busy"))
        if not ttft or not busy:
            missed.append(f"{name}: {len(ttft)} requests of the client, {len(busy)} next to busy processes")
            continue
        slowest, usual = bramble.quantile(ttft, 0.99), bramble.quantile(busy, 0.99)
        ratio = slowest / max(1e-9, usual)
        most = SHORT_TTFT_FACTOR if tenants.arguments.short else TTFT_FACTOR
        print(f"{name}: {len(ttft)} requests, p99 of TTFT {1e3 * slowest:.1f} ms, next to busy processes "
              f"{1e3 * usual:.1f} ms ({len(busy)} requests): {ratio:.2f}x{'' if ratio <= most else '  MISSED'}")
        missed += [] if ratio <= most else [f"{name}: p99 of TTFT is {ratio:.2f}x, wanted at most {most:.0f}x"]
        if len(ttft) < tenants.arguments.requests and not tenants.arguments.short:
            missed.append(f"{name}: only {len(ttft)} requests of the client, wanted {tenants.arguments.requests}")
    return missed


def campaign(tenants, arguments):
    alone = tenants.deepen()
    used = tenants.used()
    alone += asyncio.run(tenants.requests(None, 30))
    tenants.cost = (tenants.used() - used) / 30
    # The vocabulary for structured output has been read and a chat answered, so that idle memory is that of a used
    # daemon.
    for host in tenants.hosts:
        asyncio.run(client.ask(host, "POST", "/v1/completions", attacks.constrained({"enum": ["yes", "no"]})[1]))
    print(f"{tenants.model}: TTFT alone p50 {1e3 * bramble.median(alone):.1f} ms, p99 {1e3 * bramble.quantile(alone, 0.99):.1f} ms, {1e3 * tenants.cost:.0f} ms of processor time per request", flush=True)
    tenants.rest()
    for name in arguments.attacks:
        if name == "S4":
            load_bombs(tenants, SHORT_LOAD if arguments.short else list(attacks.AT_LOAD))
            chat_bombs(tenants, SHORT_CHAT if arguments.short else list(attacks.AT_CHAT))
        else:
            attack(tenants, name)
    return judge(tenants)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", type=lambda text: text.split(","), default=ALL)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--topology", default="dp2-tp2")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--programs", help="folder of brambled and console [default: target/release]", metavar="DIR")
    arguments = parser.parse_args()
    if arguments.programs:
        bramble.RELEASE = os.path.abspath(arguments.programs)
    if set(arguments.attacks) - set(ALL):
        parser.error(f"unknown attack {', '.join(sorted(set(arguments.attacks) - set(ALL)))}; choose from {', '.join(ALL)}")
    with tempfile.TemporaryDirectory(prefix="bramble-tenant-") as folder, bramble.Cluster(folder) as cluster:
        key = os.path.join(folder, "cluster.key")
        bramble.console("key", "new", "--key", key)
        tenants = None
        try:
            tenants = Tenants(cluster, key, folder, arguments)
            tenants.viewer = os.path.join(folder, "viewer.key")
            shown = subprocess.run([bramble.program("console"), "key", "show", "--role", "viewer", "--key", key], capture_output=True, text=True, check=True)
            with open(os.open(tenants.viewer, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(shown.stdout)
            missed = campaign(tenants, arguments)
        finally:
            for daemon in cluster.daemons:
                daemon.stop()
            for group in tenants.groups if tenants else []:
                group.remove()
    if arguments.json:
        print(json.dumps({"missed": missed, "rows": tenants.rows, "idle": tenants.idle, "peak": tenants.peak}))
    for line, count in collections.Counter(re.sub(r"\d+", "N", line) if "request of the client" in line else line for line in missed).items():
        print(f"MISSED{f' ({count} times)' if count > 1 else ''}: {line}", file=sys.stderr)
    sys.exit(bool(missed))


if __name__ == "__main__":
    bramble.command(main)
