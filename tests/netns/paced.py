#!/usr/bin/env python3
"""1 to 16 paced daemons in network namespaces (pacing.py): real sockets, schedules, plans and all-reduces through links
of 1 Gb/s; only the computation is replaced by a wait from a machine profile. Reports TTFT, TPOT and the network share
for each number of nodes, compared with what `console topology simulate` predicts for the same nodes and links.

usage: tests/netns/paced.py [--shape llama-3.1-8b] [--nodes 1,2,4,8,16] [--prompt 512] [--tokens 32] [--requests N]
[--short] [--baselines]

tests/netns/paced.py --layouts tp4,pp2-tp2,dp2-tp2 [--at-once 8]

--layouts compares layouts (only one replica is simulated). --at-once N also sends N concurrent requests and reports
their total tokens/s and the p95 of their TTFT. --short takes less than a minute: a small model on 2 and 4 nodes.
--baselines runs the models, node counts and prompts of baselines.toml and prints both figures.

Exit code 1 if TTFT with 8 nodes exceeds 0.65 of that with 4, if more nodes increase TPOT, if the p99/p50 ratio of TTFT
is worse with 8 nodes than with 4, or if the simulator is off by more than 10 %. All times are those of the paced nodes:
measured times divided by the slow-motion factor (`motion`).
"""
import argparse
import concurrent.futures
import math
import os
import re
import sys
import time
import tomllib

import pacing
from pacing import bramble

JITTER_PPM = 10_000
TTFT_8_OF_4, SIMULATED = 0.65, 0.10
# Tolerance when two p99/p50 ratios are compared: with a few requests p99 is their maximum.
SPREAD = 0.02
HERE = os.path.dirname(os.path.abspath(__file__))


def count_of(layout):
    """Nodes of a layout."""
    return math.prod(int(count) for count in re.findall(r"(?:dp|pp|tp)(\d+)", layout))


def measure(arguments, layout, model):
    """Runs requests on a layout, one after another, and the simulator for the same layout."""
    nodes = count_of(layout)
    motion = pacing.motion_of(nodes) * arguments.slower
    settings = [pacing.settings(arguments.profile, motion, seed=node + 1, jitter_ppm=JITTER_PPM) for node in range(nodes)]
    with pacing.network([arguments.mbit] * nodes, motion, arguments.queue) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        alpha = pacing.alpha_us(network) / motion if nodes > 1 else 0
        network.add_daemons(cluster, settings)
        prompt = arguments.text or bramble.letters(arguments.prompt)
        context = max(64, arguments.prompt + arguments.tokens + 32)
        more = ["--topology", layout, "--exchange", arguments.exchange]
        ask = lambda text, tokens: bramble.generate(cluster.daemons, os.path.basename(model), text, tokens, *more, enter=network.enter(), context=context)
        ask("a", 2)
        before = network.losses()
        answers = [ask(prompt, arguments.tokens) for _ in range(arguments.requests)]
        lost = [(after - earlier) // arguments.requests for after, earlier in zip(network.losses(), before)]
        at_once = many(ask, prompt, arguments) if arguments.at_once else None
        status = bramble.console("status", "--nodes", cluster.daemons[0].address, enter=network.enter())
    if not all(node["paced"] for node in status["nodes"]):
        sys.exit(f"a node does not report that it is paced; check the [paced] section of its settings: {status}")
    tokens = len(answers[0]["prompt_token_ids"])
    simulated = bramble.console("topology", "simulate", "--model", model, "--profile", arguments.profile, "--topology", re.sub(r"dp\d+-", "", layout), "--prompt", str(tokens),
                                "--tokens", str(arguments.tokens - 1), "--exchange", arguments.exchange, "--alpha-us", str(round(alpha)),
                                "--bandwidth-mbit", str(arguments.mbit), "--jitter", str(JITTER_PPM))["runs"][0]
    found = {**row(nodes, motion, alpha, answers, simulated), "sent_again": lost[0], "dropped": lost[1]}
    if at_once:
        seconds, ttft, tokens = at_once
        found["at_once"] = {"requests": arguments.at_once, "tokens_per_second": tokens / seconds * motion, "ttft_p95_ms": bramble.quantile(ttft, 0.95) / motion}
    return {"layout": layout, **found}


def many(ask, prompt, arguments):
    """Sends concurrent requests; returns their total duration, their times to the first token, and their tokens."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        answers = list(pool.map(lambda _: ask(prompt, arguments.tokens), range(arguments.at_once)))
    return time.monotonic() - begin, [answer["timings"]["ttft_ms"] for answer in answers], sum(len(answer["token_ids"]) for answer in answers)


def row(nodes, motion, alpha, answers, simulated):
    ttft = [answer["timings"]["ttft_ms"] / motion for answer in answers]
    tpot = [answer["timings"]["tpot_ms"] / motion for answer in answers]
    share = lambda phase: bramble.median([pacing.network_share(answer["ranks"], phase) for answer in answers])
    bubble = lambda answer: sum(rank["decode"]["bubble_ms"] for rank in answer["ranks"]) / max(1e-9, sum(
        rank["decode"][name] for rank in answer["ranks"] for name in ("compute_ms", "wait_ms", "wire_ms", "bubble_ms")))
    quantiles = lambda values: {name: bramble.quantile(values, part) for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
    return {"nodes": nodes, "motion": motion, "alpha_us": alpha, "requests": len(answers), "ttft_ms": quantiles(ttft), "tpot_ms": quantiles(tpot),
            "network": {"prefill": share("prefill"), "decode": share("decode")}, "bubble": bramble.median([bubble(answer) for answer in answers]),
            "simulated": {"ttft_ms": simulated["ttft_ms"], "tpot_ms": simulated["tpot_ms"], "network": simulated["network_fraction"]},
            "off": {"ttft": bramble.quantile(ttft, 0.5) / simulated["ttft_ms"], "tpot": bramble.quantile(tpot, 0.5) / simulated["tpot_ms"]}}


def line(found):
    ttft, tpot, simulated, off = found["ttft_ms"], found["tpot_ms"], found["simulated"], found["off"]
    at_once = found.get("at_once")
    tail = f"  bubble {100 * found['bubble']:.0f} %" if found["bubble"] > 0.005 else ""
    tail += f"  {found['sent_again']} segments retransmitted, {found['dropped']} frames dropped per request" if found["dropped"] else ""
    tail += f"  {at_once['requests']} at once: {at_once['tokens_per_second']:.2f} tokens/s, TTFT p95 {at_once['ttft_p95_ms']:.0f}" if at_once else ""
    return (f"{found['layout']:<8}  {found['motion']:>6g}  {ttft['p50']:>9.1f}  {ttft['p95']:>9.1f}  {ttft['p99']:>9.1f}  {simulated['ttft_ms']:>9.1f}  {off['ttft']:>5.2f}  "
            f"{tpot['p50']:>8.2f}  {tpot['p99']:>8.2f}  {simulated['tpot_ms']:>8.2f}  {off['tpot']:>5.2f}  "
            f"{100 * found['network']['prefill']:>4.0f} / {100 * simulated['network']['prefill']:>2.0f} %  {100 * found['network']['decode']:>4.0f} / {100 * simulated['network']['decode']:>2.0f} %{tail}")


HEAD = ("layout    motion  TTFT p50   p95        p99        simulated  ratio  TPOT p50  p99       simulated ratio  net prefill  net decode (measured / simulated), times in ms")


def knee(rows):
    """The number of nodes beyond which more nodes increase TPOT; `None` if there is none."""
    for one, more in zip(rows, rows[1:]):
        if more["tpot_ms"]["p50"] >= one["tpot_ms"]["p50"]:
            return one["nodes"]
    return None


def missed(rows):
    """A line for each target that the rows miss when compared with each other."""
    tensor = {found["nodes"]: found for found in rows if found["layout"] == f"tp{found['nodes']}"}
    lines = []
    if 4 in tensor and 8 in tensor:
        four, eight = (tensor[nodes]["ttft_ms"] for nodes in (4, 8))
        ratio = eight["p50"] / four["p50"]
        if ratio > TTFT_8_OF_4:
            lines.append(f"TTFT with 8 nodes is {ratio:.2f} of that with 4, wanted at most {TTFT_8_OF_4}")
        if eight["p99"] / eight["p50"] > four["p99"] / four["p50"] + SPREAD:
            lines.append(f"p99/p50 of TTFT is {eight['p99'] / eight['p50']:.3f} with 8 nodes and {four['p99'] / four['p50']:.3f} with 4")
    if found := knee(list(tensor.values())):
        lines.append(f"TPOT increases with more than {found} nodes")
    return lines


def off(found):
    """A line for each figure of a row that differs too much from the simulator."""
    return [f"{found['layout']}: {what.upper()} is {off:.2f} of the simulator's prediction" for what, off in found["off"].items() if abs(off - 1) > SIMULATED]


def run(arguments):
    """Measures all layouts; returns their rows and the missed targets."""
    model = os.path.abspath(pacing.model(arguments.shape, "q4_0", arguments.models))
    tell = (lambda text: None) if arguments.json else (lambda text: print(text, flush=True))
    tell(f"{arguments.shape} q4_0 on {arguments.profile}, prompt of {arguments.text or arguments.prompt}, {arguments.tokens} tokens, {arguments.requests} requests, "
         f"{arguments.mbit} Mb/s, exchange {arguments.exchange}")
    tell(HEAD)
    rows, lines = [], []

    def attempt(layout):
        found = measure(arguments, layout, model)
        tell(line(found))
        return found, off(found)

    for layout in arguments.layouts or [f"tp{nodes}" for nodes in arguments.nodes]:
        found, missing = bramble.repeated(arguments.attempts, lambda: attempt(layout))
        rows.append(found)
        lines += missing
    return rows, missed(rows) + lines


def baselines(arguments):
    """Compares our figures with each published one, for the same node counts and prompt."""
    with open(os.path.join(HERE, "baselines.toml"), "rb") as file:
        published = tomllib.load(file)["baseline"]
    lines, found = [], []
    for one in published:
        arguments.shape, arguments.nodes, arguments.text, arguments.profile = one["shape"], one["nodes"], one["prompt"], one["profile"]
        rows, missing = run(arguments)
        tell = (lambda text: None) if arguments.json else (lambda text: print(text, flush=True))
        tell(f"{one['model']}: {one['source']}; ours: {one['shape']} on {arguments.profile}, paced")
        for index, ours in enumerate(rows):
            theirs = lambda name: one[name][index] if name in one else None
            ttft = f"TTFT {theirs('ttft_s'):.1f} s, " if "ttft_s" in one else ""
            speed = 1e3 / ours["tpot_ms"]["p50"]
            tell(f"  {ours['nodes']} nodes: published {ttft}{theirs('tokens_per_second'):.2f} tokens/s; ours TTFT {ours['ttft_ms']['p50'] / 1e3:.2f} s, {speed:.2f} tokens/s")
        target, by = one.get("target"), {ours["nodes"]: ours["ttft_ms"]["p50"] / 1e3 for ours in rows}
        if target and by[target["nodes"]] > max(target["ttft_s"], target["times_of_four"] * by[4]):
            lines.append(f"{one['model']}: TTFT with {target['nodes']} nodes is {by[target['nodes']]:.1f} s, the target is {target['ttft_s']} s or {target['times_of_four']} times that of 4")
        lines += [f"{one['shape']}: {text}" for text in missing]
        found.append({"published": one, "ours": rows})
    return found, lines


def main():
    parser = pacing.parser(__doc__, shape="llama-3.1-8b", prompt=512, tokens=32, requests=6)
    parser.add_argument("--nodes", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4, 8, 16])
    parser.add_argument("--layouts", type=lambda text: text.split(","))
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--text", help=argparse.SUPPRESS)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--attempts", type=int, default=1, help="measure a layout again, this often in all, while the simulator is off")
    parser.add_argument("--queue", default=pacing.QUEUE, help="longest time that a frame waits for its link before it is dropped")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--baselines", action="store_true")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.shape, arguments.nodes, arguments.prompt, arguments.tokens, arguments.requests = "tinyllama-1.1b", [2, 4], 128, 8, 3
        arguments.slower, arguments.attempts = 2.0, 3
    bramble.favour()
    if arguments.baselines:
        rows, lines = baselines(arguments)
    else:
        rows, lines = run(arguments)
    bramble.finish({"rows": rows}, lines, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
