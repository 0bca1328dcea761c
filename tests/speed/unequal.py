#!/usr/bin/env python3
"""How near unequal nodes come to their ideal with the shares that the planner gives them: daemons with a part of a core each, by a cpu
control group. Each is measured alone; the ideal of all together is the sum of their speeds. `console plan` probes the nodes and says the
shares, `--weights` assigns them; the same with equal shares is beside it.

usage: tests/speed/unequal.py [--sets 0.85,0.15 0.4,0.4,0.2] [--rounds 3] [--tokens 32] [--shape tinyllama-1.1b] [--format q8_0] [--json]

Wanted: at least 0.9 of the ideal. Needs root; without a control group for processors it says SKIPPED. Exit code 1 where it is missed.
Nothing else should run meanwhile.
"""
import argparse
import json
import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
import groups

WANTED = 0.9
# The kernel's least quota. Periods are as short as it allows, so that a node is slow and not still for a while.
QUOTA_US = 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["0.85,0.15", "0.4,0.4,0.2"], metavar="SHARE,..", help="parts of a core of each node")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="as make_model takes it")
    parser.add_argument("--format", default="q8_0")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model = bramble.model(arguments.shape, arguments.format, os.path.join(bramble.ROOT, "target", "speed"))
    rows = []
    for text in arguments.sets:
        parts = [float(part) for part in text.split(",")]
        with bramble.Cluster(os.path.dirname(model)) as cluster:
            held = [groups.Processor(f"pi{index + 1}") for index in range(len(parts))]
            try:
                if not all(group.folder for group in held):
                    print(f"SKIPPED {text}: {held[0].reason}")
                    continue
                rows.append({"parts": parts, **measure(cluster, held, parts, model, arguments)})
                if not arguments.json:
                    tell(rows[-1])
            finally:
                for daemon in cluster.daemons:
                    daemon.stop()
                for group in held:
                    group.remove()
    if arguments.json:
        print(json.dumps(rows))
    sys.exit(any(row["ratio"] < WANTED for row in rows))


def tell(row):
    alone = ", ".join(f"{rate:.2f}" for rate in row["alone"])
    print(f"{row['parts']}: alone {alone} tokens/s, ideal {row['ideal']:.2f}; shares {row['weights']}: {row['planned']:.2f}, {row['ratio']:.2f} of it"
          f"{'' if row['ratio'] >= WANTED else '  MISSED'}; equal shares {row['equal']:.2f}, {row['equal'] / row['ideal']:.2f}")
    print(f"  network {row['network']:.0%} of a token with planned shares", flush=True)


def measure(cluster, held, parts, model, arguments):
    cores, period_us = sorted(os.sched_getaffinity(0)), math.ceil(QUOTA_US / min(parts))
    for index, (address, part) in enumerate(zip(bramble.loopback(len(parts)), parts)):
        held[index].limit(part, period_us)
        enter = [*held[index].enter(), "taskset", "-c", str(cores[index % len(cores)])]
        cluster.add(f"pi{index + 1}", address, enter=enter, settings=bramble.QUIET + "threads = 1\n", more=[bramble.PLAIN])
    name, nodes = os.path.basename(model), ",".join(daemon.address for daemon in cluster.daemons)
    # Before any of them holds a topology: the planner measures each.
    plan = bramble.console("plan", "--model", model, "--goal", "tpot", "--context", "512", "--all", *nodes.split(","), patience=1200)
    layout = f"tp{len(parts)}"
    ranks = next(one for one in plan["ranked"] if one["topology"] == layout)["replicas"][0][0]["ranks"]
    weights = [next(rank["weight"] for rank in ranks if rank["node"] == daemon.name) for daemon in cluster.daemons]

    def rates(daemons, *more):
        run = lambda tokens: bramble.generate(daemons, name, "abcdefgh", tokens, *more, context=512)["timings"]
        run(4)
        found = [run(arguments.tokens) for _ in range(arguments.rounds)]
        return tuple(bramble.median([one[of] for one in found]) for of in ("decode_tokens_per_second", "network_fraction"))

    alone = [rates([daemon], "--topology", "tp1")[0] for daemon in cluster.daemons]
    planned, network = rates(cluster.daemons, "--topology", layout, "--weights", ",".join(map(str, weights)))
    equal, _ = rates(cluster.daemons, "--topology", layout)
    ideal = sum(alone)
    return {"alone": alone, "ideal": ideal, "weights": weights, "planned": planned, "equal": equal, "ratio": planned / ideal, "network": network}


if __name__ == "__main__":
    bramble.command(main)
