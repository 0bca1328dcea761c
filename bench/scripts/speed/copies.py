#!/usr/bin/env python3
"""What copies of keys and values on another node cost: two clusters of the same model, one with `kv_copies` and one
without, compute prompts and answers in turns; ratios of their speeds, and processor time of all threads that do not
compute, as a share of the request's time: two ranks use both cores of a small machine, so that copies take theirs.

cargo build --release --locked --workspace && bench/scripts/speed/copies.py [--ranks 2] [--rounds 5] [--prompt 1500]
[--tokens 128] [--shape tinyllama-1.1b] [--format q4_0] [--models FOLDER] [--json]

Daemons of one thread on loopback. Exit code 1 if prefill is below 0.98 times or decode below 0.99 times of without.
"""
import asyncio
import os
import random
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client

SETTINGS = "threads = 1\npacked_shards = false\nkv_store = \"off\"\nmdns = false\n"
LEAST = {"prefill": 0.98, "decode": 0.99}


def beside(daemons):
    """Processor seconds so far of all threads of daemons but those that compute or wait for other ranks."""
    seconds = 0.0
    for daemon in daemons:
        tasks = f"/proc/{daemon.process.pid}/task"
        for task in os.listdir(tasks):
            try:
                with open(f"{tasks}/{task}/stat") as file:
                    name, fields = file.read().split("(", 1)[1].rsplit(") ", 1)
            except OSError:
                continue
            if not name.startswith(("compute-", "engine")):
                seconds += sum(int(field) for field in fields.split()[11:13]) / bramble.TICKS
    return seconds


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--shape", default="tinyllama-1.1b")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--models", default=os.path.join(bramble.ROOT, "target", "models"))
    arguments = parser.parse_args()
    models, model = os.path.split(bramble.model(arguments.shape, arguments.format, arguments.models))
    nodes, topology = arguments.ranks, f"tp{arguments.ranks}"
    bramble.favour()
    chance, times, shares = random.Random(1), {"prefill": [], "decode": []}, {True: [], False: []}
    with bramble.Cluster(models) as cluster:
        addresses, hosts, groups = bramble.loopback(2 * nodes), {}, {}
        for copies, own in ((True, addresses[:nodes]), (False, addresses[nodes:])):
            settings = SETTINGS + f"kv_copies = {str(copies).lower()}\n"
            daemons = [cluster.add(f"pi{index + 1}-{copies}", address, settings=settings) for index, address in enumerate(own)]
            bramble.generate(daemons, model, "To be", 2, "--topology", topology, context=4096)
            hosts[copies], groups[copies] = client.place(daemons[0]), daemons
        asyncio.run(client.until_healthy(list(hosts.values())))
        for turn in range(arguments.rounds + 1):
            prompt = [chance.randrange(300, 30000) for _ in range(arguments.prompt)]
            body = {"model": model, "prompt": prompt, "max_tokens": arguments.tokens, "temperature": 0, "ignore_eos": True, "speculative": False}
            found = {}
            for copies in (True, False) if turn % 2 else (False, True):
                begun, before = time.monotonic(), beside(groups[copies])
                found[copies] = client.completion(hosts[copies], body)["timings"]
                if turn:
                    shares[copies].append((beside(groups[copies]) - before) / (time.monotonic() - begun))
            # The first turn touches memory for the first time.
            if turn:
                times["prefill"].append(found[False]["prompt_ms"] / found[True]["prompt_ms"])
                times["decode"].append(found[False]["predicted_per_token_ms"] / found[True]["predicted_per_token_ms"])
                if not arguments.json:
                    print(f"prefill {times['prefill'][-1]:.3f}, decode {times['decode'][-1]:.3f} of without "
                          f"({found[True]['prompt_ms']:.0f} ms, {found[True]['predicted_per_token_ms']:.2f} ms a token)", flush=True)
    ratios = {phase: bramble.median(found) for phase, found in times.items()}
    if not arguments.json:
        print(f"{topology}, median of {arguments.rounds}: prefill {ratios['prefill']:.3f}, decode {ratios['decode']:.3f} times as fast as without copies; "
              f"threads that do not compute: {100 * bramble.median(shares[True]):.1f} % of a core with, {100 * bramble.median(shares[False]):.1f} % without")
    missed = [f"{phase} is {ratios[phase]:.3f} of without copies, wanted at least {least}" for phase, least in LEAST.items() if ratios[phase] < least]
    bramble.finish({"ratios": ratios, "rounds": times, "beside": shares}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
