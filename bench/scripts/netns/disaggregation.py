#!/usr/bin/env python3
"""The cost and the benefit of a prefill group, in network namespaces with links of 1 Gb/s: how much of the KV transfer
is hidden behind the prefill, and how much a long prefill slows down running answers.

usage: bench/scripts/netns/disaggregation.py [--prefill 2] [--decode 1] [--tokens 512,1024] [--long 4096] [--rounds 3]
[--shape qwen3-0.6b] [--json]

bench/scripts/netns/disaggregation.py --bench 1,3 [--prompts 128,512,..] [--rounds 3]

Hidden: the visible part of the transfer compared with that of a run which transfers nothing until the prefill is
complete. The tokens of both runs must be those of the decode group alone. Fails below 90 % hidden, or if the p95 of the
time between tokens grows by more than 10 %. --bench prints the tables of `bramble-bench disagg` on two nodes, for each
given number of concurrently running answers.
"""
import argparse
import json
import os
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
from network import Network

SETTINGS = bramble.QUIET + "prefill_elsewhere_from = 32\n"


def transfers(arguments, model, at_end):
    """For each number of tokens: the medians of the visible part and of the whole prefill in ms, the bytes, and the
    sampled tokens."""
    topology = f"prefill:tp{arguments.prefill}+decode:tp{arguments.decode}"
    found = {}
    # A prompt in the prefix cache would not be requested again.
    variant = [bramble.PLAIN, *(["--transfer-at-end"] if at_end else [])]
    with Network(arguments.prefill + arguments.decode, arguments.rate) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        cores = sorted(os.sched_getaffinity(0))
        for node in range(len(network.nodes)):
            core = ["taskset", "-c", str(cores[node % len(cores)])]
            cluster.add(f"pi{node + 1}", f"10.77.0.{node + 1}:9999", enter=[*network.enter(node), *core], settings=SETTINGS, variant=variant)

        def run(tokens, topology, daemons):
            prompt, name = bramble.letters(tokens), os.path.basename(model)
            return bramble.generate(daemons, name, prompt, 4, "--topology", topology, enter=network.enter(), context=arguments.context)

        run(64, topology, cluster.daemons)
        for tokens in arguments.tokens:
            runs = [run(tokens, topology, cluster.daemons) for _ in range(arguments.rounds)]
            times = [one["timings"]["transfer"] for one in runs]
            part = lambda name: bramble.median([one[name] for one in times])
            found[tokens] = {name: part(name) for name in ("visible_ms", "compute_ms", "bytes")}
            found[tokens]["ids"] = runs[0]["token_ids"]
    return found


def answer(network, common, room, wait, long):
    """Times between the tokens of an answer in ms. With `long`, a command that computes a prompt, it is started after
    `wait` tokens and the answer is cancelled when it ends; also returns the index of the token at which it began, and
    its object. Without it the answer is cancelled after `wait`."""
    command = [*network.enter(), bramble.program("console"), *common, "--prompt", "ab", "--max-tokens", str(room)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    found, prompt, last = [], None, None
    try:
        while os.read(running.stdout.fileno(), 65536):
            now = time.monotonic()
            if last is not None:
                found.append((now - last) * 1e3)
            last = now
            if long and not prompt and len(found) >= wait:
                begin, prompt = len(found), subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            if prompt and prompt.poll() is not None or not long and len(found) >= wait:
                break
        if not long:
            return found
        if not prompt or prompt.poll() != 0:
            sys.exit("the answer ended before the prompt was computed")
        return found, begin, json.loads(prompt.stdout.read())["timings"]
    finally:
        for process in (running, prompt):
            if process and process.poll() is None:
                process.kill()
                process.wait()


def gaps(arguments, model, topology, nodes):
    """Times between the tokens of an answer in ms, p95: during a long prefill, and for the same tokens of the same
    answer without it, because a token costs more the longer its context is."""
    with Network(nodes, arguments.rate) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        network.add_daemons(cluster, SETTINGS, pin=True)
        addresses = ",".join(daemon.address for daemon in cluster.daemons)
        common = ["generate", "--yes", "--nodes", addresses, "--model", os.path.basename(model), "--topology", topology, "--temperature", "0"]
        common += ["--context", str(arguments.context)]
        bramble.console(*common, "--prompt", "ab", "--max-tokens", "2", enter=network.enter())
        # Leaves room for the long prompt in the KV cache.
        room = arguments.context - arguments.long - 128
        long = [*network.enter(), bramble.program("console"), *common, "--prompt", bramble.letters(arguments.long), "--max-tokens", "1", "--json"]
        beside, begin, timings = answer(network, common, room, 150, long)
        alone = answer(network, common, room, len(beside), None)
    p95 = lambda values: sorted(values)[int(0.95 * (len(values) - 1))]
    return {"alone_ms": p95(alone[begin : len(beside)]), "beside_ms": p95(beside[begin:]), "gaps": len(beside) - begin, "ttft_ms": timings["ttft_ms"]}


def bench(arguments, model):
    """Prints the tables; returns the exit code of the commands."""
    codes = []
    with Network(2, arguments.rate) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        network.add_daemons(cluster, bramble.QUIET + "mdns = false\nthreads = 1\n", pin=True)
        nodes = ",".join(daemon.address for daemon in cluster.daemons)
        for running in arguments.bench:
            print(f"{running} answers run concurrently:", flush=True)
            command = [bramble.program("bramble-bench"), "disagg", "--nodes", nodes, "--model", os.path.basename(model), "--yes"]
            command += ["--prompts", arguments.prompts, "--running", str(running), "--repeats", str(arguments.rounds)]
            codes.append(subprocess.run([*network.enter(), *command], stdin=subprocess.DEVNULL).returncode)
    return max(codes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("--prefill", type=int, default=2)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--tokens", type=numbers, default=[512, 1024])
    parser.add_argument("--long", type=int, default=4096)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--models", default=os.path.join(bramble.ROOT, "target", "models"), metavar="DIR")
    parser.add_argument("--bench", type=numbers)
    parser.add_argument("--prompts", default="128,512,1024,2048,4096,8192")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bramble.favour()
    # The longest prompt of the tables must fit next to the running answers.
    context = 16384 if arguments.bench else None
    model = os.path.abspath(bramble.model(arguments.shape, "q4_0", arguments.models, context))
    if arguments.bench:
        sys.exit(bench(arguments, model))
    streamed, at_end = (transfers(arguments, model, at_end) for at_end in (False, True))
    rows, is_good = [], True
    for tokens in arguments.tokens:
        one, other = streamed[tokens], at_end[tokens]
        if one["ids"] != other["ids"]:
            sys.exit(f"{tokens} tokens: different ids if the KV cache is sent at the end")
        hidden = 1 - one["visible_ms"] / other["visible_ms"]
        is_good &= hidden >= 0.9 or tokens < 512
        row = {"tokens": tokens, "mb": one["bytes"] / 1e6, "compute_ms": one["compute_ms"], "visible_ms": one["visible_ms"],
               "at_end_ms": other["visible_ms"], "hidden": hidden}
        rows.append(row)
        if not arguments.json:
            print(f"{tokens} tokens, {row['mb']:.1f} MB: computed in {row['compute_ms']:.0f} ms, transfer visible {row['visible_ms']:.1f} ms, "
                  f"{row['at_end_ms']:.1f} ms when sent at the end: {100 * hidden:.1f} % hidden{'' if hidden >= 0.9 else '  BELOW'}")
    answers = {}
    if arguments.long:
        for topology, nodes in (("prefill:tp1+decode:tp1", 2), ("tp1", 1)):
            found = gaps(arguments, model, topology, nodes)
            found["ratio"] = found["beside_ms"] / found["alone_ms"]
            answers[topology] = found
            if not arguments.json:
                print(f"{topology}: p95 between tokens {found['alone_ms']:.1f} ms, {found['beside_ms']:.1f} ms while a prompt of {arguments.long} is "
                      f"computed ({found['ratio']:.2f}x, {found['gaps']} tokens; its first token after {found['ttft_ms']:.0f} ms)")
        is_good &= answers["prefill:tp1+decode:tp1"]["ratio"] <= 1.1
    if arguments.json:
        print(json.dumps({"transfers": rows, "answers": answers}))
    sys.exit(not is_good)


if __name__ == "__main__":
    bramble.command(main)
