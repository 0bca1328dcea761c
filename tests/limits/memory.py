#!/usr/bin/env python3
"""Compares the memory that `console topology assign --dry-run` predicts for each node with the peak that the kernel reports
(VmHWM). Real daemons serve prompts that fill the KV cache, then one request per slot with repetitive text, so that
steps are full of speculative tokens.

usage: tests/limits/memory.py [--short] [--json]

Exit code 1 if the prediction for a node is off by more than 5 %, or by more than 8 MiB for a node below 100 MB. The
models are made under target/limits with make_model (random weights, real shapes); the daemons are release builds.
"""
import os
import random
import re
import string
import subprocess
import sys
import threading

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
FOLDER = os.path.join(ROOT, "target", "limits")
sys.path.append(os.path.join(ROOT, "tests", "python"))
import bramble

# Shape, format, layers (None: all), layout, nodes, context, slots.
SHORT = [
    ("tinyllama-1.1b", "q4_0", 6, "tp1", 1, 512, 16),
    ("tinyllama-1.1b", "q4_0", 6, "tp2", 2, 512, 4),
    ("tinyllama-1.1b", "q4_0", 6, "pp2", 2, 512, 16),
]
LONG = SHORT + [
    ("tinyllama-1.1b", "q4_0", None, "tp1", 1, 1024, 1),
    ("tinyllama-1.1b", "q4_0", None, "tp2", 2, 4096, 16),
    ("tinyllama-1.1b", "q4_0", None, "pp2", 2, 4096, 16),
    ("tinyllama-1.1b", "q8_0", None, "tp4", 4, 1024, 16),
    ("llama-3.2-1b", "q4_k_m", None, "tp1", 1, 2048, 16),
    ("llama-3.2-1b", "q4_k_m", None, "tp2", 2, 2048, 16),
    ("llama-3.2-1b", "q4_k_m", None, "pp2", 2, 2048, 32),
    ("qwen3-0.6b", "q4_0", None, "tp1", 1, 2048, 16),
    ("qwen3-0.6b", "q4_0", None, "tp2", 2, 2048, 16),
    ("qwen3-0.6b", "q4_0", None, "pp2", 2, 1024, 16),
    ("qwen3-30b-a3b", "q4_0", 2, "tp2", 2, 1024, 16),
]
# Copies of keys and values use memory that is free, and give way where it is short: no prediction counts them.
COPIES = "kv_copies = false\n"
TOLERANCE, SMALL, ABSOLUTE = 0.05, 100_000_000, 8 << 20


def made(shape, form, layers):
    """The path of the model file, which is made only once."""
    if layers is None:
        return bramble.model(shape, form, FOLDER)
    path = os.path.join(FOLDER, f"{shape}-{layers}-{form}.gguf")
    if not os.path.exists(path):
        os.makedirs(FOLDER, exist_ok=True)
        command = [bramble.program("make_model"), shape, form, path + ".part", "--layers", str(layers)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        os.rename(path + ".part", path)
    return path


def peak(daemon):
    with open(f"/proc/{daemon.process.pid}/status") as file:
        return int(re.search(r"^VmHWM:\s+(\d+) kB", file.read(), re.M).group(1)) * 1024


def topology(path, model, layout, daemons, context, slots):
    """Writes a topology file, the only way to set the number of slots."""
    stages = [daemons] if layout.startswith("tp") else [[daemon] for daemon in daemons]
    with open(path, "w") as file:
        file.write(f'model = "{model}"\ncontext_length = {context}\nslots = {slots}\n')
        for stage in stages:
            nodes = ", ".join(f'"{daemon.address}"' for daemon in stage)
            file.write(f"[[stage]]\nnodes = [{nodes}]\n")


def load(daemons, model, context, slots):
    """Fills the KV cache with prompts of the full context, then runs as many answers as there are slots."""
    def ask(prompt, tokens):
        try:
            bramble.generate(daemons, model, prompt, tokens)
        except bramble.Failed as error:
            failed.append(str(error))

    failed, chance = [], random.Random(1)
    # The first prompt fills all blocks except one per further slot; a second, different prompt takes those.
    for _ in range(2):
        ask("".join(chance.choice(string.ascii_lowercase) for _ in range(context - 12)), 8)
    letters = string.ascii_lowercase + string.ascii_uppercase
    shortest = context * 2 // 3 // slots
    prompts = [((letters[index] + "abcdefg") * 8)[: min(64, shortest)] for index in range(slots)]
    threads = [threading.Thread(target=ask, args=(prompt, min(96, shortest))) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(f"requests failed: {failed[0]}")


def measure(shape, form, layers, layout, nodes, context, slots):
    path = made(shape, form, layers)
    model = os.path.basename(path)
    with bramble.Cluster(FOLDER) as cluster:
        daemons = [cluster.add(f"n{index}", address, settings=bramble.QUIET + COPIES) for index, address in enumerate(bramble.loopback(nodes))]
        file = os.path.join(cluster.folder, "topology.toml")
        topology(file, model, layout, daemons, context, slots)
        predicted = {member["node"]: member["memory"] for member in bramble.console("topology", "assign", file, "--dry-run")["plan"]["members"]}
        bramble.console("topology", "assign", file, "--yes")
        load(daemons, model, context, slots)
        return [{"model": model, "layout": layout, "context": context, "slots": slots, "node": daemon.name,
                 "predicted": predicted[daemon.name], "peak": peak(daemon)} for daemon in daemons]


def is_near(one):
    difference = abs(one["predicted"]["total"] - one["peak"])
    return difference <= (one["peak"] * TOLERANCE if one["peak"] >= SMALL else ABSOLUTE)


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--short", action="store_true", help="three layouts of a model of 200 MB")
    arguments = parser.parse_args()
    found = []
    if not arguments.json:
        print(f"{'model':<28} {'layout':<7} {'context':>7} {'slots':>5} {'node':<5}"
              f"{'weights':>9}{'KV':>8}{'state':>7}{'working':>9}{'total':>9}{'peak':>9}  MiB   off")
    for case in SHORT if arguments.short else LONG:
        for one in measure(*case):
            found.append(one)
            if not arguments.json:
                parts = one["predicted"]
                mib = [parts[name] / 2**20 for name in ("weights", "kv", "state", "working", "total")] + [one["peak"] / 2**20]
                widths = (9, 8, 7, 9, 9, 9)
                figures = "".join(f"{value:>{width}.1f}" for value, width in zip(mib, widths))
                off = 100 * (parts["total"] / one["peak"] - 1)
                print(f"{one['model']:<28} {one['layout']:<7} {one['context']:>7} {one['slots']:>5} {one['node']:<5}{figures}      "
                      f"{off:+5.1f} %{'' if is_near(one) else '  MISSED'}", flush=True)
    missed = [f"{one['model']} {one['layout']}, {one['node']}: predicted {one['predicted']['total'] / 2**20:.1f} MiB, peak {one['peak'] / 2**20:.1f} MiB"
              for one in found if not is_near(one)]
    bramble.finish({"nodes": found}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
