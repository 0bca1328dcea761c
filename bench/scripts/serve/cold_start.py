#!/usr/bin/env python3
"""Four nodes lose power at once and return in random order, up to 60 s apart, with clocks in 1970, two of them with
swapped addresses and one with a read-only disk. No console talks to them. Prints how long after the last node all
serve; wanted: at most 10 s.

cargo build --release --locked --workspace && bench/scripts/serve/cold_start.py [--rounds 3] [--apart 60] [--seed 1]

The clocks need the package faketime, the disk needs root; missing parts are reported as SKIPPED.
"""
import argparse
import os
import random
import shutil
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
# Default settings, except that a node which is away for a minute is not excluded yet.
SETTINGS = "packed_shards = false\nthreads = 1\nexclude_after_ms = 600000\n"
BACK_SECONDS = 10
# Mounts the folder read-only over itself, visible only to the daemon.
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def in_1970():
    """Command prefix for a clock in 1970."""
    if not shutil.which("faketime"):
        print("SKIPPED clocks in 1970: the package faketime is missing", file=sys.stderr)
        return []
    # As on a machine without a real-time clock: the monotonic clock runs normally.
    return ["env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "-f", "@1970-01-01 00:00:10"]


def read_only(daemon):
    """Command prefix for a read-only state folder."""
    if os.geteuid() != 0:
        print("SKIPPED the read-only disk: needs root", file=sys.stderr)
        return []
    return ["unshare", "--mount", "sh", "-c", READ_ONLY, daemon.state]


def states(daemons):
    found = bramble.console("status", "--nodes", ",".join(daemon.address for daemon in daemons))["nodes"]
    return [node.get("state") for node in found]


def all_serve(daemons):
    """Returns the seconds until all nodes serve."""
    begin = time.monotonic()
    while time.monotonic() < begin + 60:
        try:
            if all(state in ("ready", "serving") for state in states(daemons)):
                return time.monotonic() - begin
        except bramble.Failed:
            pass
        time.sleep(0.1)
    sys.exit(f"not all nodes serve after 60 s: {states(daemons)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", type=float, default=60, help="maximum seconds between the first and the last node")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    chance, failed = random.Random(arguments.seed), []
    with bramble.Cluster(MODELS) as cluster:
        daemons = [cluster.add(f"pi{index + 1}", address, settings=SETTINGS) for index, address in enumerate(bramble.loopback(4))]
        before = bramble.generate(daemons, MODEL, "ROMEO:", 16)["token_ids"]
        clocks = in_1970()
        for number in range(arguments.rounds):
            for daemon in daemons:
                daemon.process.kill()
            for daemon in daemons:
                daemon.stop()
            swapped, broken = chance.sample(daemons, 2), chance.choice(daemons)
            swapped[0].address, swapped[1].address = swapped[1].address, swapped[0].address
            order = chance.sample(daemons, len(daemons))
            begin, moments = time.monotonic(), sorted([0, *(chance.uniform(0, arguments.apart) for _ in order[1:-1]), arguments.apart])
            for daemon, moment in zip(order, moments):
                time.sleep(max(0, begin + moment - time.monotonic()))
                daemon.enter = (read_only(daemon) if daemon is broken else []) + clocks
                daemon.start()
            seconds = all_serve(daemons)
            names = ", ".join(f"{daemon.name} at {moment:.0f} s" for daemon, moment in zip(order, moments))
            print(f"round {number + 1}: {names}; {swapped[0].name} and {swapped[1].name} swapped, {broken.name} is read-only: all serve {seconds:.1f} s after the last", flush=True)
            failed += [] if seconds <= BACK_SECONDS else [f"round {number + 1}: {seconds:.1f} s"]
        after = bramble.generate(sorted(daemons, key=lambda daemon: daemon.name), MODEL, "ROMEO:", 16)["token_ids"]
        failed += [] if after == before else ["different ids than before"]
    for line in failed:
        print(line, file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    bramble.command(main)
