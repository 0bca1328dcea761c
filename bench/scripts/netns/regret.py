#!/usr/bin/env python3
"""The regret of taking the planner's first choice, on random clusters of 2 to 8 paced nodes (pacing.py) whose speeds,
memory and links depend on the seed. `console topology plan` ranks the layouts for these nodes; the daemons then run them.

usage: bench/scripts/netns/regret.py [--clusters 100] [--seed 1] [--shape tinyllama-1.1b] [--prompt 64] [--layouts 6]
[--minutes M] [--json]

For each cluster and each goal (ttft, tpot) the regret is the relative extra time of the first choice over the fastest
layout that was run. Only layouts of one replica are run: replicas do not change the time of a single request. A cluster
runs the layouts predicted within --within of the first (any other could only win if a prediction were that wrong) and
one other at random, at most --layouts; the number left out is printed.

Exit code 1 if the first choice is more than 5 % behind in more than 5 % of the clusters, or if the median error of the
predictions for a kind of layout (tp, pp, pp-tp) exceeds 10 %.
"""
import os
import random
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import pacing
from pacing import bramble

REGRET, SHARE, OFF = 0.05, 0.95, 0.10
# Goals of the planner and what they minimise.
KEYS = (("ttft", "ttft_ms"), ("tpot", "tpot_ms"))
# Exit code of `console topology plan` if no layout fits.
NOTHING_FITS = 8
# Number of generated clusters into which the model does not fit, per cluster wanted.
EMPTY_MAX = 10
SPEEDS, MBITS = [0.5, 0.6, 0.75, 0.9, 1.0, 1.0, 1.0], [250, 500, 1000, 1000, 1000]
# For the 1.1B shape, which needs about 650 MiB in all: some layouts do not fit, and some nodes get less than their
# share.
MEMORY_MIB = [160, 256, 400, 800, 2000, 2000]
CONTEXT = 256


def kind(layout):
    """tp, pp or pp-tp."""
    stages = "pp" in layout and not layout.startswith("pp1-")
    ranks = "tp" in layout and not layout.endswith("tp1")
    return {(True, True): "pp-tp", (True, False): "pp", (False, True): "tp"}.get((stages, ranks), "tp1")


def draw(seed):
    """Speed, memory and link of each node."""
    chance = random.Random(seed)
    count = chance.randint(2, 8)
    nodes = [{"name": f"pi{index + 1}", "speed": chance.choice(SPEEDS), "free_mib": chance.choice(MEMORY_MIB), "link_mbit": chance.choice(MBITS)} for index in range(count)]
    return nodes, chance


def plan(model, nodes, alpha, goal, arguments, folder):
    path = os.path.join(folder, "nodes.toml")
    with open(path, "w") as file:
        for node in nodes:
            file.write(f'[[node]]\nname = "{node["name"]}"\nspeed = {node["speed"]!r}\nfree_mib = {node["free_mib"]}\nlink_mbit = {node["link_mbit"]}\n')
    return bramble.console("topology", "plan", "--model", model, "--described", path, "--goal", goal, "--prompt", str(arguments.prompt), "--context", str(CONTEXT),
                           "--alpha-us", str(round(alpha)), "--exchange", arguments.exchange, "--all")["ranked"]


def chosen(ranked, arguments, chance):
    """The ranked layouts of one replica by goal, the layouts to run, and the number left out. Layouts are compared by
    their assignment: the same topology can have another head for another goal."""
    single = {goal: [one for one in found if not one["topology"].startswith("dp")] for goal, found in ranked.items()}
    per_goal, wanted = max(1, (arguments.layouts - 1) // 2), {}
    for goal, key in KEYS:
        near = [one for one in single[goal] if one[key] <= (1 + arguments.within) * single[goal][0][key]]
        wanted |= {one["assign"]: one for one in near[:per_goal]}
    others = {one["assign"]: one for found in single.values() for one in found if one["assign"] not in wanted}
    if others:
        other = chance.choice(list(others.values()))
        wanted[other["assign"]] = other
    return single, list(wanted.values()), len(others) - bool(others)


def run(network, cluster, model, layout, motion, arguments):
    """Time to the first token and per token of a layout: medians over the requests."""
    parts = layout["assign"].split()
    options = dict(zip(parts[::2], parts[1::2]))
    by_name = {daemon.name: daemon for daemon in cluster.daemons}
    daemons = [by_name[name] for name in options.pop("--nodes").split(",")]
    more = [part for pair in options.items() for part in pair] + ["--exchange", arguments.exchange, "--collective", arguments.collective]
    ask = lambda prompt, tokens: bramble.generate(daemons, os.path.basename(model), prompt, tokens, *more, enter=network.enter(), context=CONTEXT)
    ask("a", 2)
    answers = [ask(bramble.letters(arguments.prompt), arguments.tokens) for _ in range(arguments.requests)]
    return {key: bramble.median([answer["timings"][key] for answer in answers]) / motion for _, key in KEYS}


def cluster_of(seed, model, arguments):
    """The results of one random cluster; `None` if the model does not fit."""
    nodes, chance = draw(seed)
    motion = pacing.motion_of(len(nodes)) * arguments.slower
    settings = [pacing.settings(arguments.profile, motion, seed=seed * 100 + index, speed=node["speed"], memory_mib=node["free_mib"]) for index, node in enumerate(nodes)]
    with pacing.network([node["link_mbit"] for node in nodes], motion) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        alpha = pacing.alpha_us(network) / motion
        ranked = {}
        for goal, _ in KEYS:
            try:
                ranked[goal] = plan(model, nodes, alpha, goal, arguments, cluster.folder)
            except bramble.Failed as error:
                if error.code != NOTHING_FITS:
                    raise
                return None
        single, wanted, left_out = chosen(ranked, arguments, chance)
        network.add_daemons(cluster, settings)
        found = {}
        for layout in wanted:
            measured = run(network, cluster, model, layout, motion, arguments)
            found[layout["assign"]] = {"topology": layout["topology"], "measured": measured, "predicted": {key: layout[key] for key in measured}}
    regret = {}
    for goal, key in KEYS:
        best = min(found, key=lambda assign: found[assign]["measured"][key])
        first = single[goal][0]["assign"]
        regret[goal] = {"first": first, "best": best, "regret": found[first]["measured"][key] / found[best]["measured"][key] - 1}
    return {"seed": seed, "nodes": nodes, "motion": motion, "layouts": found, "left_out": left_out, "regret": regret}


def errors(clusters):
    """Relative errors of the predictions with their signs, by kind of layout."""
    found = {}
    for one in clusters:
        for layout in one["layouts"].values():
            for _, key in KEYS:
                found.setdefault((kind(layout["topology"]), key), []).append(layout["measured"][key] / layout["predicted"][key] - 1)
    return found


def judge(clusters):
    lines, missed = [], []
    for goal, _ in KEYS:
        regrets = [one["regret"][goal]["regret"] for one in clusters]
        good = sum(regret <= REGRET for regret in regrets)
        lines.append(f"{goal}: the first choice is within {100 * REGRET:.0f} % of the best in {good} of {len(regrets)} clusters; p50 {100 * bramble.quantile(regrets, 0.5):.1f} %, "
                     f"p95 {100 * bramble.quantile(regrets, 0.95):.1f} %, most {100 * max(regrets):.1f} %")
        if good < SHARE * len(regrets):
            missed.append(lines[-1])
    for (name, key), off in sorted(errors(clusters).items()):
        median, signed = bramble.median([abs(one) for one in off]), bramble.median(off)
        lines.append(f"{name:6} {key[:4]}: predictions off by {100 * median:.1f} % in the median (measured {100 * signed:+.1f} %), {len(off)} layouts")
        if median > OFF:
            missed.append(lines[-1])
    return lines, missed


def line(goal, regret, layouts):
    """The regret of a goal, with the topologies of the first choice and of the best layout."""
    first, best = layouts[regret["first"]]["topology"], layouts[regret["best"]]["topology"]
    return f"{goal} {first}{'' if regret['first'] == regret['best'] else f' (best {best})'} {100 * regret['regret']:.1f} %"


def main():
    parser = pacing.parser(__doc__, shape="tinyllama-1.1b", prompt=64, tokens=12, requests=1)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layouts", type=int, default=6)
    parser.add_argument("--collective", default="auto", help="all-reduce algorithm, as in console generate --collective")
    parser.add_argument("--within", type=float, default=0.3)
    parser.add_argument("--minutes", type=float, default=1e6, help="start no further cluster after this time")
    arguments = parser.parse_args()
    bramble.favour()
    model = os.path.abspath(pacing.model(arguments.shape, "q4_0", arguments.models))
    clusters, empty, begin, seed = [], 0, time.monotonic(), arguments.seed
    while len(clusters) < arguments.clusters and empty < EMPTY_MAX * arguments.clusters and time.monotonic() - begin < 60 * arguments.minutes:
        found, seed = cluster_of(seed, model, arguments), seed + 1
        if not found:
            empty += 1
            continue
        clusters.append(found)
        if not arguments.json:
            regrets = ", ".join(line(goal, one, found["layouts"]) for goal, one in found["regret"].items())
            print(f"seed {found['seed']}: {len(found['nodes'])} nodes, {len(found['layouts'])} layouts run, {found['left_out']} left out; {regrets}", flush=True)
    if not clusters:
        sys.exit("the model does not fit into any of these clusters")
    lines, missed = judge(clusters)
    if not arguments.json:
        print(f"{len(clusters)} clusters of seeds {arguments.seed} to {seed - 1}; the model did not fit into {empty} others")
        print("\n".join(lines))
    bramble.finish({"clusters": clusters, "empty": empty}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
