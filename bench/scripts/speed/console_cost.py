#!/usr/bin/env python3
"""The cost of an attached dashboard for a node: decode on one core with and without a dashboard on the other core that
watches it, in pairs of alternating order. Prints the slow-down with the 95 % interval of its mean, and the CPU time per
token of the daemon's reporting threads.

cargo build --release --locked --workspace && bench/scripts/speed/console_cost.py [--pairs 30] [--json]

Wanted: reporting threads use at most 0.5 % of a token's CPU time, and the lower end of the slow-down's interval is at
most 0.5 %. As root, the script raises its scheduling priority.
"""
import argparse
import fcntl
import math
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
WANTED = 0.005
SIZE = struct.pack("HHHH", 40, 120, 0, 0)


class Dashboard:
    """A dashboard in a pseudo-terminal, pinned to a core."""

    def __init__(self, daemon, core):
        self.terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, SIZE)
        command = ["taskset", "-c", str(core), bramble.program("console"), "--nodes", daemon.address]
        self.process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True)
        os.close(inner)
        self.seen, self.bytes = threading.Event(), 0
        threading.Thread(target=self.read, daemon=True).start()
        if not self.seen.wait(10):
            sys.exit("the dashboard shows nothing")
        # Wait until the first report is on the screen.
        time.sleep(0.5)

    def read(self):
        while True:
            try:
                chunk = os.read(self.terminal, 65536)
            except OSError:
                return
            self.bytes += len(chunk)
            self.seen.set()

    def quit(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.terminal)


def cpu(daemon):
    """Processor nanoseconds of each of the daemon's threads, by id and name."""
    folder, found = f"/proc/{daemon.process.pid}/task", {}
    for thread in os.listdir(folder):
        with open(f"{folder}/{thread}/schedstat") as file, open(f"{folder}/{thread}/comm") as name:
            found[thread, name.read().strip()] = int(file.read().split()[0])
    return found


def run(daemon, model, arguments):
    """Seconds per token, and processor nanoseconds per token of the engine's threads and of the others."""
    before = cpu(daemon)
    answer = bramble.generate([daemon], os.path.basename(model), "a" * 8, arguments.tokens, context=arguments.tokens + 64, enter=["taskset", "-c", str(arguments.cores[1])])
    spent = {thread: after - before.get(thread, 0) for thread, after in cpu(daemon).items()}
    tokens = len(answer["token_ids"])
    # The computing thread uses nearly all of it.
    engine = max(spent.values())
    return 1 / answer["timings"]["decode_tokens_per_second"], engine / tokens, (sum(spent.values()) - engine) / tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.cores = sorted(os.sched_getaffinity(0))[:2]
    bramble.favour()
    model, slow, reporting = bramble.model(arguments.shape, arguments.format, FOLDER), [], []
    with bramble.Cluster(FOLDER) as cluster:
        settings = bramble.QUIET + 'http = "off"\nthreads = 1\n'
        daemon = cluster.add("pi1", bramble.loopback(1)[0], enter=["taskset", "-c", str(arguments.cores[0])], settings=settings, variant=[bramble.PLAIN])
        run(daemon, model, arguments)
        for number in range(arguments.pairs):
            found = {}
            for watched in (False, True) if number % 2 else (True, False):
                dashboard = Dashboard(daemon, arguments.cores[1]) if watched else None
                found[watched] = run(daemon, model, arguments)
                if dashboard:
                    dashboard.quit()
            slow.append(found[True][0] / found[False][0] - 1)
            reporting.append((found[True][2] - found[False][2]) / found[True][1])
    error = 1.96 * statistics.stdev(slow) / math.sqrt(len(slow))
    mean, share = statistics.mean(slow), bramble.median(reporting)
    report = {"slow_down": mean, "lower": mean - error, "upper": mean + error, "median": bramble.median(slow), "reporting_share": share, "wanted": WANTED}
    if arguments.json:
        return bramble.tell(report, True)
    print(f"slow-down {mean:+.2%} (95 % interval {mean - error:+.2%} to {mean + error:+.2%}, median {bramble.median(slow):+.2%}), wanted a lower end of at most {WANTED:.1%}")
    print(f"CPU time of the daemon's reporting threads for the dashboard: {share:.2%} of a token's, wanted at most {WANTED:.1%}")
    sys.exit(1 if mean - error > WANTED or share > WANTED else 0)


if __name__ == "__main__":
    bramble.command(main)
