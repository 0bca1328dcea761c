#!/usr/bin/env python3
"""Compares one tensor-parallel group with two stages of half the ranks and with two replicas: `bramble-bench ab` on
paced daemons (pacing.py) behind links of 1 Gb/s, next to the predictions of `console topology plan` for the same nodes.

usage: bench/scripts/netns/ab.py [--nodes 2,4] [--at-once 1,8] [--shape llama-3.1-8b] [--prompt 256] [--tokens 16] [--rounds 3]
[--json]

All times are those of the paced nodes: measured times divided by the slow-motion factor. `end` marks a layout whose
TTFT p95 is more than 1.3 times that of the tensor-parallel group, which ends the experiment. Exit code 1 if a request
failed.
"""
import os
import re
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import pacing
from pacing import bramble

MBIT = 1000


def layouts_of(nodes):
    half = nodes // 2
    return [f"tp{nodes}", f"pp2-tp{half}", f"dp2-tp{half}"]


def predictions(model, nodes, alpha, arguments):
    """The planner's predictions for each layout of equal nodes."""
    plan = bramble.console("topology", "plan", "--model", model, "--count", str(nodes), "--profile", arguments.profile, "--memory", "8G", "--prompt", str(arguments.prompt),
                           "--context", str(context(arguments)), "--exchange", arguments.exchange, "--alpha-us", str(round(alpha)), "--bandwidth-mbit", str(MBIT), "--all")
    return {one["topology"]: one for one in plan["ranked"]}


def context(arguments):
    return arguments.prompt + arguments.tokens + 64


def measure(model, nodes, at_once, arguments):
    motion = pacing.motion_of(nodes) * arguments.slower
    settings = [pacing.settings(arguments.profile, motion, seed=node + 1) for node in range(nodes)]
    layouts = layouts_of(nodes)
    with pacing.network([MBIT] * nodes, motion) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        alpha = pacing.alpha_us(network) / motion
        network.add_daemons(cluster, settings)
        found = bramble.bench("ab", "--nodes", ",".join(daemon.address for daemon in cluster.daemons), "--model", os.path.basename(model), "--yes",
                                "--topologies", ",".join(layouts), "--input", str(arguments.prompt), "--output", str(arguments.tokens), "--rounds", str(arguments.rounds),
                                "--concurrency", str(at_once), "--context", str(context(arguments)), "--exchange", arguments.exchange,
                                enter=network.enter(), patience=7200, is_good=(0, 1))
    predicted = predictions(model, nodes, alpha, arguments)
    return [row(layout, nodes, at_once, motion, found, predicted) for layout in layouts]


def row(layout, nodes, at_once, motion, found, predicted):
    of = lambda phase: next(one for one in found["cells"] if (one["cell"]["layout"], one["cell"]["phase"]) == (layout, phase))
    times = next(one for one in found["times"] if one["cell"].startswith(layout + " prefill"))
    steps = next(one for one in found["times"] if one["cell"].startswith(layout + " decode"))
    median = lambda phase, *keys: bramble.median([value(repeat, keys) for repeat in of(phase)["repeats"]])
    scaled = lambda time: None if time is None else time / motion
    failed = sum(repeat["requests"] - repeat["completed"] for phase in ("prefill", "decode") for repeat in of(phase)["repeats"])
    ends = any(one["layout"] == layout and "end the experiment" in one["verdict"] for one in found["verdicts"])
    guess = predicted.get(layout) or predicted.get(re.sub("-tp1$", "", layout)) or {}
    return {"nodes": nodes, "at_once": at_once, "layout": layout, "motion": motion, "failed": failed, "ends": ends,
            "ttft_p50_ms": median("prefill", "ttft_ms", "p50") / motion, "ttft_p95_ms": median("prefill", "ttft_ms", "p95") / motion,
            "tpot_p50_ms": median("decode", "tpot_ms", "p50") / motion, "tokens_per_second": median("decode", "tokens_per_second") * motion,
            "exchange_ms": scaled(times["exchange_ms"]), "hop_ms": scaled(steps["hop_ms"]), "bubble_ms": scaled(times["bubble_ms"]),
            "network_fraction": times["network_fraction"],
            "predicted": {key: guess.get(key) for key in ("ttft_ms", "tpot_ms", "throughput")}}


def value(found, keys):
    for key in keys:
        found = found[key]
    return found


def line(row):
    number = lambda value, form: "-" if value is None else format(value, form)
    guess = row["predicted"]
    return (f"| {row['nodes']} | {row['at_once']} | {row['layout']} | {row['ttft_p50_ms']:.0f} / {row['ttft_p95_ms']:.0f} | {row['tpot_p50_ms']:.1f} | {row['tokens_per_second']:.2f} | "
            f"{number(row['exchange_ms'], '.0f')} | {number(row['hop_ms'], '.2f')} | {number(row['bubble_ms'], '.0f')} | {100 * row['network_fraction']:.0f} % | "
            f"{number(guess['ttft_ms'], '.0f')} | {number(guess['tpot_ms'], '.1f')} |{' end' if row['ends'] else ''}{' FAILED ' + str(row['failed']) if row['failed'] else ''}")


HEAD = "| nodes | at once | layout | TTFT p50 / p95 | TPOT p50 | tokens/s | exchange of a prompt | hop | bubble of a prompt | network of a prompt | planned TTFT | planned TPOT |"


def main():
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser = pacing.parser(__doc__, shape="llama-3.1-8b", prompt=256, tokens=16, requests=0)
    parser.add_argument("--nodes", type=numbers, default=[2, 4])
    parser.add_argument("--at-once", type=numbers, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    bramble.favour()
    model = os.path.abspath(pacing.model(arguments.shape, "q4_0", arguments.models))
    rows = []
    if not arguments.json:
        print(f"{arguments.shape} q4_0 on {arguments.profile}, prompts of {arguments.prompt}, answers of {arguments.tokens}, {arguments.rounds} rounds; times in ms")
        print(HEAD + "\n|" + "---|" * HEAD.count(" | ") + "---|", flush=True)
    for nodes in arguments.nodes:
        for at_once in arguments.at_once:
            for found in measure(model, nodes, at_once, arguments):
                rows.append(found)
                if not arguments.json:
                    print(line(found), flush=True)
    bramble.finish({"rows": rows}, [f"{row['layout']}, {row['at_once']} at once: {row['failed']} requests failed" for row in rows if row["failed"]], arguments.json)


if __name__ == "__main__":
    bramble.command(main)
