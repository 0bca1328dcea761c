#!/usr/bin/env python3
"""The dashboard next to sixteen idle nodes on this machine at four reports per second: its share of a core on each page
without input, and the milliseconds from a key to the first bytes on the screen.

cargo build --release --locked --workspace && bench/scripts/speed/console.py [--nodes 16] [--seconds 20] [--keys 400] [--json]

Wanted: at most 1.5 % of a core, and at most 5 ms for 99 of 100 keys. As root, the script raises its scheduling priority.
"""
import argparse
import fcntl
import os
import pty
import random
import select
import signal
import struct
import sys
import termios
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
PAGES = {"1": "cluster", "2": "topology", "3": "sync", "5": "requests", "6": "events", "7": "node"}
SIZE = (40, 120)
CORE_SHARE, KEY_MS = 0.015, 5
# A key is sent only after the screen has been still for this long, so that a frame that was due anyway does not count
# as its answer.
STILL_SECONDS = 0.04


class Screen:
    """A dashboard in a pseudo-terminal."""

    def __init__(self, nodes):
        command = [bramble.program("console"), "--nodes", ",".join(nodes)]
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
            os.environ["TERM"] = "xterm-256color"
            os.execv(command[0], command)
        self.bytes = 0

    def read(self, seconds):
        """The bytes that arrive within a time; empty if the screen did not change."""
        if not select.select([self.terminal], [], [], max(0, seconds))[0]:
            return b""
        chunk = os.read(self.terminal, 1 << 16)
        self.bytes += len(chunk)
        return chunk

    def rest(self, seconds):
        """Reads and discards for a time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)

    def cpu(self):
        """Processor seconds of all its threads."""
        total = 0
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def press(self, key):
        """Milliseconds until the screen responds to a key."""
        while self.read(STILL_SECONDS):
            pass
        begin = time.monotonic()
        os.write(self.terminal, key.encode())
        if not self.read(5):
            sys.exit(f"no answer to {key!r} within 5 s")
        return (time.monotonic() - begin) * 1e3

    def resident(self):
        with open(f"/proc/{self.pid}/status") as file:
            return next(int(line.split()[1]) / 1e3 for line in file if line.startswith("VmRSS"))

    def quit(self):
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20, help="seconds on each page")
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", help="folder of brambled and console [default: target/release]")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.programs:
        bramble.RELEASE = os.path.abspath(arguments.programs)
    bramble.favour()
    shares, chance = {}, random.Random(arguments.seed)
    with bramble.Cluster(MODELS) as cluster:
        settings = 'http = "off"\nthreads = 1\n' + bramble.QUIET
        daemons = [cluster.add(f"pi{index + 1}", address, settings=settings) for index, address in enumerate(bramble.loopback(arguments.nodes))]
        bramble.generate(daemons, "bard-q8_0.gguf", "ROMEO:", 2, "--topology", f"dp{arguments.nodes // 2}-tp2")
        screen = Screen([daemon.address for daemon in daemons])
        screen.rest(3)
        for key, page in PAGES.items():
            screen.press(key)
            screen.rest(1)
            cpu, drawn, begin = screen.cpu(), screen.bytes, time.monotonic()
            screen.rest(arguments.seconds)
            seconds = time.monotonic() - begin
            shares[page] = {"core": (screen.cpu() - cpu) / seconds, "bytes_per_second": (screen.bytes - drawn) / seconds}
        last, times = "7", []
        for _ in range(arguments.keys):
            last = chance.choice([key for key in PAGES if key != last])
            times.append(screen.press(last))
        resident = screen.resident()
        screen.quit()
    times.sort()
    p50, p99 = (times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.99))
    worst = max(share["core"] for share in shares.values())
    if arguments.json:
        bramble.tell({"pages": shares, "key_ms": {"p50": p50, "p99": p99, "most": times[-1]}, "resident_mb": resident}, True)
    else:
        for page, share in shares.items():
            print(f"{page:10} {share['core']:6.2%} of a core, {share['bytes_per_second']:7.0f} bytes/s to the terminal")
        print(f"key to screen: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {times[-1]:.1f} ms (wanted {KEY_MS}); {resident:.0f} MB resident")
    sys.exit(1 if worst > CORE_SHARE or p99 > KEY_MS else 0)


if __name__ == "__main__":
    bramble.command(main)
