#!/usr/bin/env python3
"""Daemons in network namespaces with links of 1 Gb/s: every topology must give the ids of a single node, and its nodes
must send the number of bytes that the formula of the exchange predicts.

usage: tests/netns/check.py [--topologies tp2,tp4,..] [--rate 1gbit] [--delay-ms D] [--model FILE] [--tokens N]

Bytes are those counted by each interface, less the headers of Ethernet, IP and TCP (66 bytes per packet; a packet here
is what the kernel hands to the link, up to 64 kB). Wanted: at most 1.02 times the formula plus 4 kB per token, and at
least 0.9 times the formula.
"""
import argparse
import os
import re
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
from network import Network

# Ethernet 14, IPv4 20, TCP 32 with time stamps.
HEADERS = 14 + 20 + 32
PER_TOKEN = 4096
# A console's session: handshake, settings, the text.
PER_REQUEST = 8192
IDS_MIN = 32


def parts(topology):
    """Replicas, stages and ranks per stage of a layout."""
    found = {kind: int(count) for kind, count in re.findall(r"(dp|pp|tp)(\d+)", topology)}
    return found.get("dp", 1), found.get("pp", 1), found.get("tp", 1)


def formula(shape, topology, rows):
    """Maximum bytes sent by each node of one replica, and the sum over the nodes, with f32: two all-reduces per layer,
    in which every rank sends its partial sums to every other rank of its stage (with two ranks no algorithm sends
    less), and hidden states from stage to stage."""
    _, stages, ranks = parts(topology)
    vector, layers = 4 * shape["embedding_length"] * rows, shape["block_count"]
    # The planner chooses which stage has more layers; this is the maximum for one stage.
    most = layers - stages + 1
    nodes = [2 * most * vector * (ranks - 1) + (vector if stage < stages - 1 else 0) for stage in range(stages) for _ in range(ranks)]
    return nodes, 2 * layers * vector * (ranks - 1) * ranks + (stages - 1) * ranks * vector


def check(network, daemons, model, topology, expected, arguments):
    """Runs every prompt; returns the number of equal ids and a line about the bytes sent."""
    replicas, stages, ranks = parts(topology)
    count = replicas * stages * ranks
    used, enter, name = daemons[:count], network.enter(), os.path.basename(model)

    def run(prompt, tokens):
        more = ["--topology", topology, "--logprobs", "2", "--exchange", "f32"]
        more += ["--collective", arguments.collective] if arguments.collective else []
        return bramble.generate(used, name, prompt, tokens, *more, enter=enter)

    # Excludes the assignment, which measures links and exchanges shard information.
    run(bramble.PROMPTS[0], 2)
    before = [network.counters(node) for node in range(count)]
    rows, ids = 0, 0
    for prompt, one in zip(bramble.PROMPTS, expected):
        found = run(prompt, arguments.tokens)
        ids += bramble.agreement(one, found, f"{topology}, {prompt!r}")
        # The last token is sampled, but its forward pass is never computed.
        rows += len(found["prompt_token_ids"]) + len(found["token_ids"]) - 1
    after = [network.counters(node) for node in range(count)]
    if ids < IDS_MIN:
        sys.exit(f"{topology}: only {ids} ids were clear enough to compare; at least {IDS_MIN} are needed")
    sent = [after[node]["tx"][0] - before[node]["tx"][0] - HEADERS * (after[node]["tx"][1] - before[node]["tx"][1]) for node in range(count)]
    if replicas == 1:
        compare_bytes(topology, sent, bramble.shape(model), rows, len(expected), arguments.collective)
    return ids


def compare_bytes(topology, sent, shape, rows, requests, collective):
    nodes, total = formula(shape, topology, rows)
    more = PER_TOKEN * rows + PER_REQUEST * requests
    print(f"{topology:8} all nodes send {sum(sent) / rows / 1e3:8.1f} kB per token, formula {total / rows / 1e3:8.1f}", flush=True)
    for node, (bytes, most) in enumerate(zip(sent, nodes)):
        if bytes > 1.02 * most + more:
            sys.exit(f"{topology}: pi{node + 1} sends {bytes} bytes; the formula predicts {most}, and {more} more are allowed")
    if sum(sent) > 1.02 * total + len(sent) * more:
        sys.exit(f"{topology}: {sum(sent)} bytes are sent; the formula predicts {total}")
    # A broken counter must not pass. With more ranks `auto` may choose an algorithm that sends less than direct
    # exchange.
    ranks = parts(topology)[2]
    least = 0.9 if ranks <= 2 or collective == "direct" else 0.9 * 2 / ranks
    if sum(sent) < least * total:
        sys.exit(f"{topology}: {sum(sent)} bytes are sent; the formula predicts {total}. Does the exchange use these links?")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default="tp2,tp4,pp2,pp2-tp2")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--model", default=os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf"))
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--collective", help="all-reduce algorithm, as in console generate --collective")
    arguments = parser.parse_args()
    topologies = arguments.topologies.split(",")
    counts = [replicas * stages * ranks for replicas, stages, ranks in map(parts, topologies)]
    model = os.path.abspath(arguments.model)
    # A busy machine must not look like a lost node.
    # Copies of keys and values are not part of the formula.
    settings = "silent_ms = 30000\nstall_ms = 60000\nkv_copies = false\n"
    with Network(max(counts), arguments.rate, arguments.delay_ms) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        network.add_daemons(cluster, settings)
        one = [bramble.generate(cluster.daemons[:1], os.path.basename(model), prompt, arguments.tokens, "--logprobs", "2", enter=network.enter())
               for prompt in bramble.PROMPTS]
        for topology in topologies:
            ids = check(network, cluster.daemons, model, topology, one, arguments)
            print(f"{topology:8} {ids} ids equal to one node's", flush=True)


if __name__ == "__main__":
    bramble.command(main)
