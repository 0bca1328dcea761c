#!/usr/bin/env python3
"""Answers with and without a draft model in turns, by real daemons of one thread behind links of 1 Gb/s (or --rate): times
per token, their ratio, accepted tokens, and the share of the network in the steps without it. Without --target and
--draft, a pair is made: the draft model reads about a tenth of the target's bytes, and agrees with it in 70 % of all
tokens; with --unpredictable, in none.

usage: bench/scripts/netns/drafts.py [--topologies tp2,tp4] [--rounds 5] [--tokens 128] [--unpredictable] [--json]

Exit code 1 if an answer differs, or if the median ratio is below --least. Needs root, ip and tc.
"""
import json
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
from network import Network
from pacing import network_share

SETTINGS = "threads = 1\npacked_shards = false\nkv_store = \"off\"\nkv_copies = false\nmdns = false\n"
# The draft model reads 8 % of the bytes of the target.
SHAPE, FORMAT, CHAIN = "tinyllama-1.1b", "q4_0", "5"
SMALLER = ["--layers", "3", "--embedding", "1024"]
# Tokens of the chain: letters follow themselves. Other models get a text.
PROMPT, TEXT = [3000, 4000, 5000, 6000], "ROMEO:"
ASK = """
import json, sys, urllib.request
asked = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(asked, timeout=600).read().decode())
"""


def made(folder, name, agreement, more):
    """The path of a model along the chain, made only once."""
    return bramble.model(SHAPE, FORMAT, folder, name=name, options=["--chain", CHAIN, "--agreement", str(agreement), *more])


def ranks(topology):
    """Number of ranks of a layout."""
    if not re.fullmatch(r"tp[1-9]\d*", topology):
        sys.exit(f"{topology}: draft models need a layout of one stage, such as tp4")
    return int(topology.removeprefix("tp"))


def answer(network, arguments, temperature, speculative):
    """An answer of the head over HTTP: its text and its timings."""
    body = {"prompt": TEXT if arguments.target else PROMPT, "max_tokens": arguments.tokens, "temperature": temperature, "seed": 5, "ignore_eos": True, "speculative": speculative}
    url = "http://127.0.0.1:9980/v1/completions"
    run = subprocess.run([*network.enter(0), sys.executable, "-c", ASK, url, json.dumps(body)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{url}: {run.stderr.strip().splitlines()[-1]}")
    found = json.loads(run.stdout)
    return found["choices"][0]["text"], found["timings"]


def measure(network, daemons, topology, pair, arguments):
    """Answers in turns on one layout, at temperature 0 and 0.8; returns a row and the missed goals."""
    target, draft = (os.path.basename(path) for path in pair)
    run = lambda *more: bramble.generate(daemons, target, "To be", 32, "--topology", topology, "--exchange", "f32", *more, enter=network.enter())
    share = network_share(run()["ranks"], "decode")
    run("--draft", draft)
    rows, missed = [], []
    for temperature in (0, 0.8):
        ratios, times, counts = [], {True: [], False: []}, [0, 0]
        for turn in range(arguments.rounds + 1):
            found = {speculative: answer(network, arguments, temperature, speculative) for speculative in (False, True)}
            if found[True][0] != found[False][0]:
                missed.append(f"{topology}, temperature {temperature}: the answers differ")
            # The first turn measures what proposals cost.
            if turn:
                per_token = {speculative: timings["predicted_per_token_ms"] for speculative, (_, timings) in found.items()}
                ratios.append(per_token[False] / per_token[True])
                counts = [sum(two) for two in zip(counts, (found[True][1]["draft_n_accepted"], found[True][1]["draft_n"]))]
                for speculative, time in per_token.items():
                    times[speculative].append(time)
        row = {"topology": topology, "temperature": temperature, "ratio": bramble.median(ratios), "network": share, "accepted": counts[0], "proposed": counts[1],
               "without_ms": bramble.median(times[False]), "with_ms": bramble.median(times[True])}
        rows.append(row)
        if row["ratio"] < arguments.least:
            missed.append(f"{topology}, temperature {temperature}: {row['ratio']:.2f} times as fast, wanted at least {arguments.least}")
        if not arguments.json:
            print(f"{topology}  temperature {temperature:<3}  {row['ratio']:.2f} times as fast: {row['with_ms']:.1f} ms a token, {row['without_ms']:.1f} without; "
                  f"{counts[0]} of {counts[1]} accepted; network {100 * share:.0f} % of the steps without", flush=True)
    return rows, missed


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--topologies", default="tp4", type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rate", default="1gbit", help="link rate in the notation of tc; 0: no limit")
    parser.add_argument("--target", help="model file")
    parser.add_argument("--draft", help="draft model file, in the same folder")
    parser.add_argument("--unpredictable", action="store_true", help="a pair that never agrees")
    parser.add_argument("--least", type=float, help="smallest ratio [default: 1.5, for a pair that never agrees 0.97]")
    parser.add_argument("--models", default=os.path.join(bramble.ROOT, "target", "models"), metavar="DIR")
    arguments = parser.parse_args()
    arguments.least = arguments.least or (0.97 if arguments.unpredictable else 1.5)
    agreement = 0 if arguments.unpredictable else 0.7
    pair = (arguments.target or made(arguments.models, "chain", 1, []), arguments.draft or made(arguments.models, f"chain-draft-{agreement}", agreement, SMALLER))
    count = max(ranks(topology) for topology in arguments.topologies)
    bramble.favour()
    rows, missed = [], []
    with Network(count, arguments.rate) as network, bramble.Cluster(os.path.dirname(os.path.abspath(pair[0]))) as cluster:
        cores = sorted(os.sched_getaffinity(0))
        for node in range(count):
            enter = [*network.enter(node), "taskset", "-c", str(cores[node % len(cores)])]
            cluster.add(f"pi{node + 1}", f"10.77.0.{node + 1}:9999", enter=enter, settings=SETTINGS)
        for topology in arguments.topologies:
            found, missing = measure(network, cluster.daemons[: ranks(topology)], topology, pair, arguments)
            rows, missed = rows + found, missed + missing
    bramble.finish({"rows": rows}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
