#!/usr/bin/env python3
"""The cost of a long delay between the stages of a pipeline: daemons behind a switch that delays every frame. A token
should take as long as on one node plus one delay per stage (the hidden state goes forward, the token id goes back); a
prompt should not pay one delay per chunk.

usage: bench/scripts/netns/delay.py [--delay-ms 50] [--topologies pp2] [--model FILE] [--rounds 3] [--json]

Fails if a token takes 5 % more than that, if the first token takes more than one node's plus a round trip per stage, or
if a deadline expires. Nodes have net.ipv4.tcp_slow_start_after_idle=0, as such a network needs: with --slow-start a
message of 150 kB waits for three more round trips.
"""
import argparse
import json
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
from check import parts
from network import Network

PROMPT = "To be, or not to be, that is the question: whether it is nobler in the mind to suffer. " * 5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=50)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--topologies", default="pp2")
    parser.add_argument("--model", default=os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--slow-start", action="store_true", help="idle connections fall back to slow start, the kernel's default")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    topologies = arguments.topologies.split(",")
    stages = {topology: parts(topology)[1] for topology in topologies}
    if any(parts(topology) != (1, stages[topology], 1) for topology in topologies):
        sys.exit("only pipelines (ppN) pay one delay per stage")
    model, found = os.path.abspath(arguments.model), {}
    # The default settings: no deadline may expire because of the delay.
    network = Network(max(stages.values()), arguments.rate, arguments.delay_ms, arguments.slow_start)
    with network, bramble.Cluster(os.path.dirname(model)) as cluster:
        network.add_daemons(cluster, pin=True)

        def run(nodes, topology):
            more = ["--topology", topology, "--exchange", "f32"]
            daemons = cluster.daemons[:nodes]
            times = lambda: bramble.generate(daemons, os.path.basename(model), PROMPT, arguments.tokens, *more, enter=network.enter())["timings"]
            times()
            return times()

        for _ in range(arguments.rounds):
            for topology in ["tp1", *topologies]:
                found.setdefault(topology, []).append(run(stages.get(topology, 1), topology))
    rows, is_good = [], True
    for topology in topologies:
        median = lambda name, what: bramble.median([one[what] for one in found[name]])
        way, count = arguments.delay_ms, stages[topology]
        row = {
            "topology": topology,
            "tpot_ms": median(topology, "tpot_ms"),
            "tpot_expected_ms": median("tp1", "tpot_ms") + way * count,
            "ttft_ms": median(topology, "ttft_ms"),
            "ttft_at_most_ms": median("tp1", "ttft_ms") + 2 * way * count,
        }
        row["holds"] = row["tpot_ms"] <= 1.05 * row["tpot_expected_ms"] and row["ttft_ms"] <= row["ttft_at_most_ms"]
        is_good &= row["holds"]
        rows.append(row)
        if not arguments.json:
            print(f"{topology}: a token {row['tpot_ms']:.1f} ms, one node's plus {count} delays {row['tpot_expected_ms']:.1f}; first token "
                  f"{row['ttft_ms']:.1f} ms, one node's plus {count} round trips {row['ttft_at_most_ms']:.1f}{'' if row['holds'] else '  BEYOND'}")
    if arguments.json:
        print(json.dumps(rows))
    sys.exit(not is_good)


if __name__ == "__main__":
    bramble.command(main)
