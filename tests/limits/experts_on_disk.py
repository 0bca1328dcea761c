#!/usr/bin/env python3
"""Runs a mixture of experts that is 1.5 times as large as the memory of its daemon, with its experts on the disk, and
compares its speed with the one that the daemon predicts.

usage: tests/limits/experts_on_disk.py [--layers N] [--tokens N] [--json]

A control group limits the memory and forbids swap, which needs root. The daemon must first refuse the model and offer
the setting, then answer with it. Exit code 1 if the speed is off by more than 25 %, or if anything was swapped or killed.
The model is made under target/limits with make_model (random weights, real shapes); the daemons are release builds.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
FOLDER = os.path.join(ROOT, "target", "limits")
sys.path.append(os.path.join(ROOT, "tests", "python"))
import bramble
import groups

SHAPE, FORM, CONTEXT = "qwen3-30b-a3b", "q4_0", 512
TIMES, TOLERANCE = 1.5, 0.25


def made(layers):
    path = os.path.join(FOLDER, f"{SHAPE}-{layers}-{FORM}.gguf")
    if not os.path.exists(path):
        os.makedirs(FOLDER, exist_ok=True)
        command = [bramble.program("make_model"), SHAPE, FORM, path + ".part", "--layers", str(layers)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        os.rename(path + ".part", path)
    # Pages that are not written yet would stay in the page cache, and be read from there.
    os.sync()
    return path


def forbid_swap(group):
    """Sets the group's limit of swap to zero, or, in version 1, of memory and swap together to that of memory."""
    for name, text in (("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", None)):
        path = os.path.join(group.folder, name)
        if os.path.exists(path):
            if text is None:
                with open(os.path.join(group.folder, "memory.limit_in_bytes")) as file:
                    text = file.read().strip()
            with open(path, "w") as file:
                file.write(text)
            return


def swapped(daemon):
    with open(f"/proc/{daemon.process.pid}/status") as file:
        return int(re.search(r"^VmSwap:\s+(\d+) kB", file.read(), re.M).group(1)) * 1024


def read_bytes(daemon):
    """Bytes that a daemon has read from disks."""
    with open(f"/proc/{daemon.process.pid}/io") as file:
        return int(re.search(r"^read_bytes: (\d+)", file.read(), re.M).group(1))


def assign(cluster, daemon, model):
    file = os.path.join(cluster.folder, "topology.toml")
    with open(file, "w") as out:
        out.write(f'model = "{model}"\ncontext_length = {CONTEXT}\nslots = 1\n[[stage]]\nnodes = ["{daemon.address}"]\n')
    bramble.console("topology", "assign", file, "--yes")


def refusal(cluster, address, model, settings, enter):
    """What a daemon says that may not leave experts on the disk."""
    daemon = cluster.add("n0", address, settings=settings, enter=enter)
    try:
        assign(cluster, daemon, model)
    except bramble.Failed as error:
        return str(error)
    finally:
        daemon.stop()
    sys.exit("the model fits into memory: nothing to measure")


def measure(layers, tokens):
    path = made(layers)
    model, size = os.path.basename(path), os.path.getsize(path)
    limit = int(size / TIMES)
    group = groups.Group("experts", limit)
    if not group.folder:
        sys.exit(f"cannot limit memory: {group.reason}")
    forbid_swap(group)
    settings = bramble.QUIET + f"memory_max_mib = {limit >> 20}\n"
    try:
        with bramble.Cluster(FOLDER) as cluster:
            [address] = bramble.loopback(1)
            said = refusal(cluster, address, model, settings, group.enter())
            daemon = cluster.add("n1", address, settings=settings + "experts_on_disk = true\n", enter=group.enter(), variant=[bramble.PLAIN])
            assign(cluster, daemon, model)
            predicted = float(re.search(r"about ([0-9.]+) tokens/s are expected", daemon.text()).group(1))
            # The most probable answer of random weights repeats a few tokens, whose experts stay in memory. The first
            # answer fills the cache.
            for _ in range(2):
                before = read_bytes(daemon)
                found = bramble.generate([daemon], model, bramble.letters(8), tokens, context=CONTEXT, temperature=1)
            speed = 1e3 / found["timings"]["tpot_ms"]
            read = (read_bytes(daemon) - before) / tokens
            swap, kills = swapped(daemon), group.kills()
            slots, count = map(int, re.search(r"memory holds (\d+) of (\d+) experts", daemon.text()).groups())
    finally:
        group.remove()
    return {"model": model, "bytes": size, "limit": limit, "offer": said, "predicted": predicted, "measured": speed, "read_per_token": int(read), "slots": slots, "experts": count, "swapped": swap, "kills": kills}


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    found = measure(arguments.layers, arguments.tokens)
    if not arguments.json:
        print(f"{found['model']}, {found['bytes'] / 2**20:.0f} MiB, memory {found['limit'] / 2**20:.0f} MiB: "
              f"predicted {found['predicted']:.2f} tokens/s, measured {found['measured']:.2f}; "
              f"{found['slots']} of {found['experts']} experts in memory, {found['read_per_token'] / 1e6:.1f} MB read per token; swapped {found['swapped']} bytes")
    missed = []
    if "experts_on_disk = true" not in found["offer"]:
        missed.append(f"the refusal does not offer the setting: {found['offer']}")
    if abs(found["measured"] / found["predicted"] - 1) > TOLERANCE:
        missed.append(f"predicted {found['predicted']:.2f} tokens/s, measured {found['measured']:.2f}")
    if found["swapped"] or found["kills"]:
        missed.append(f"{found['swapped']} bytes swapped, {found['kills']} processes killed")
    bramble.finish(found, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
