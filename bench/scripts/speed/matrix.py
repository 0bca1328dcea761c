#!/usr/bin/env python3
"""The reduced matrix of `bramble-bench matrix` on daemons with one core each: its duration, and that `bramble-bench
compare` reports no regression for a second measurement of the same build, but one for a slowed build: the same daemons
with an older kernel table.

cargo build --release --locked --workspace && bench/scripts/speed/matrix.py [--nodes 2] [--shape qwen3-0.6b] [--slow avx2]
[--out FOLDER]

The three results, their tables and the report of the first stay in the folder. Run it on an otherwise idle machine. As
root, the script raises its scheduling priority.
"""
import argparse
import os
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
LONGEST_S = 600


def measure(arguments, model, name, kernels=None):
    """Runs the matrix on fresh daemons; returns the result's file and the seconds it took."""
    out = os.path.join(arguments.out, name + ".json")
    for old in (out, out[:-5] + ".csv"):
        if os.path.exists(old):
            os.remove(old)
    enter = ["env", f"BRAMBLE_KERNELS={kernels}"] if kernels else []
    cores = sorted(os.sched_getaffinity(0))
    with bramble.Cluster(FOLDER) as cluster:
        for index, address in enumerate(bramble.loopback(arguments.nodes)):
            core = str(cores[index % len(cores)])
            cluster.add(f"pi{index + 1}", address, enter=["taskset", "-c", core, *enter], settings=bramble.QUIET, more=["--threads", "1", "--http", "off"])
        nodes = ",".join(daemon.address for daemon in cluster.daemons)
        command = [bramble.program("bramble-bench"), "matrix", "--yes", "--reduced", "--nodes", nodes, "--model", model, "--out", out, "--commit", name]
        begin = time.monotonic()
        if subprocess.run(command, stdin=subprocess.DEVNULL, timeout=2 * LONGEST_S).returncode:
            sys.exit(f"the matrix of {name} failed")
        return out, time.monotonic() - begin


def compare(one, two):
    run = subprocess.run([bramble.program("bramble-bench"), "compare", one, two], stdin=subprocess.DEVNULL, timeout=60)
    return run.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--shape", default="qwen3-0.6b", help="shape name of make_model")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--slow", default="avx2", help="kernel table of the slowed build")
    parser.add_argument("--out", default=os.path.join(bramble.ROOT, "target", "matrix"), metavar="FOLDER")
    arguments = parser.parse_args()
    if not bramble.favour():
        print("running without a raised scheduling priority: needs root", file=sys.stderr)
    os.makedirs(arguments.out, exist_ok=True)
    model = os.path.basename(bramble.model(arguments.shape, arguments.format, FOLDER))
    before, seconds = measure(arguments, model, "before")
    again, _ = measure(arguments, model, "again")
    slow, _ = measure(arguments, model, "slow", arguments.slow)
    same, regressed = compare(before, again), compare(before, slow)
    page = os.path.join(arguments.out, "report.html")
    subprocess.run([bramble.program("bramble-bench"), "report", before, "--out", page], stdin=subprocess.DEVNULL, timeout=60, check=True)
    print(f"  reduced matrix of {arguments.nodes} nodes, {model}: {seconds:.0f} s, wanted at most {LONGEST_S}")
    print(f"  compare with the same build again: exit code {same}, wanted 0{'' if same == 0 else '  MISSED'}")
    print(f"  compare with kernels {arguments.slow}: exit code {regressed}, wanted 1{'' if regressed == 1 else '  MISSED'}")


if __name__ == "__main__":
    bramble.command(main)
