#!/usr/bin/env python3
"""A cluster of two kinds of machines: one native daemon and one for arm64 under qemu-user share a model over loopback
and must give the ids of a single node of each kind. Tests correctness, not speed.

usage: tests/aarch64/cluster.py BRAMBLED_FOR_ARM64 [--cpu cortex-a72] [--topologies tp2,pp2] [--model FILE] [--tokens N]
"""
import argparse
import os
import shutil
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

IDS_MIN = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="BRAMBLED_FOR_ARM64")
    parser.add_argument("--cpu", default="cortex-a72")
    parser.add_argument("--topologies", default="tp2,pp2")
    parser.add_argument("--model", default=os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf"))
    parser.add_argument("--tokens", type=int, default=24)
    arguments = parser.parse_args()
    if not shutil.which("qemu-aarch64"):
        sys.exit("qemu-aarch64 is missing; apt install qemu-user")
    name = os.path.basename(arguments.model)
    # An emulated node answers slowly; it must not count as lost.
    settings = "heartbeat_ms = 1000\nsilent_ms = 120000\nstall_ms = 240000\n"
    with bramble.Cluster(os.path.dirname(os.path.abspath(arguments.model))) as cluster:
        here, there = bramble.loopback(2)
        native = cluster.add("native", here, settings=settings)
        emulated = cluster.add("emulated", there, settings=settings, run=["qemu-aarch64", "-cpu", arguments.cpu, arguments.program])

        def texts(nodes, *more):
            each = lambda prompt: bramble.generate(nodes, name, prompt, arguments.tokens, "--logprobs", "2", *more)
            return [each(prompt) for prompt in bramble.PROMPTS]

        expected = texts([native])
        # Either node may be the head, which schedules and samples.
        runs = [("emulated alone", [emulated], [])]
        for topology in arguments.topologies.split(","):
            runs.append((f"{topology}, head native", [native, emulated], ["--topology", topology]))
            runs.append((f"{topology}, head emulated", [emulated, native], ["--topology", topology]))
        for what, nodes, more in runs:
            ids = sum(bramble.agreement(one, other, what) for one, other in zip(expected, texts(nodes, *more)))
            if ids < IDS_MIN:
                sys.exit(f"{what}: only {ids} ids were clear enough to compare; at least {IDS_MIN} are needed")
            print(f"{what}: {ids} ids equal to those of the native node alone", flush=True)


if __name__ == "__main__":
    bramble.command(main)
