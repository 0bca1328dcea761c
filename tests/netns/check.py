#!/usr/bin/env python3
"""Daemons in network namespaces with links of 1 Gb/s: every topology gives the ids of one node, and what its nodes send over their links
is what the formula of the exchange says.

usage: tests/netns/check.py [--topologies tp2,tp4,..] [--rate 1gbit] [--delay-ms D] [--model FILE] [--tokens N]

Bytes are those that each interface counts, less the headers of Ethernet, IP and TCP (66 bytes a packet; a packet here is what the
kernel hands to the link, up to 64 kB). Wanted: at most 1.02 of the formula and 4 kB a token, and not less than 0.9 of it.
"""
import argparse
import os
import re
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
from network import Network

# Ethernet 14, IPv4 20, TCP 32 with its time stamps.
HEADERS = 14 + 20 + 32
PER_TOKEN = 4096
# A console's session: handshake, settings, the text.
PER_REQUEST = 8192
IDS_MIN = 32


def parts(topology):
    """Replicas, stages and ranks a stage of a layout."""
    found = {kind: int(count) for kind, count in re.findall(r"(dp|pp|tp)(\d+)", topology)}
    return found.get("dp", 1), found.get("pp", 1), found.get("tp", 1)


def formula(shape, topology, rows):
    """Bytes that each node of one replica sends at most, and all of them together, at f32: two all-reduces a layer, in which every rank
    sends its partial sums to every other one of its stage (with two ranks no collective sends less), and hidden states from stage to stage."""
    _, stages, ranks = parts(topology)
    vector, layers = 4 * shape["embedding_length"] * rows, shape["block_count"]
    # Which stage has more layers is the planner's choice: this is the most that one can have.
    most = layers - stages + 1
    nodes = [2 * most * vector * (ranks - 1) + (vector if stage < stages - 1 else 0) for stage in range(stages) for _ in range(ranks)]
    return nodes, 2 * layers * vector * (ranks - 1) * ranks + (stages - 1) * ranks * vector


def check(network, daemons, model, topology, expected, arguments):
    """Runs every prompt; how many ids agreed, and a line on what was sent."""
    replicas, stages, ranks = parts(topology)
    count = replicas * stages * ranks
    used, enter, name = daemons[:count], network.enter(), os.path.basename(model)

    def run(prompt, tokens):
        more = ["--topology", topology, "--logprobs", "2", "--exchange", "f32"]
        more += ["--collective", arguments.collective] if arguments.collective else []
        return bramble.generate(used, name, prompt, tokens, *more, enter=enter)

    # The assignment is apart: links are measured and shards are told of in it.
    run(bramble.PROMPTS[0], 2)
    before = [network.counters(node) for node in range(count)]
    rows, ids = 0, 0
    for prompt, one in zip(bramble.PROMPTS, expected):
        found = run(prompt, arguments.tokens)
        ids += bramble.agreement(one, found, f"{topology}, {prompt!r}")
        # The last token is sampled and never computed with.
        rows += len(found["prompt_token_ids"]) + len(found["token_ids"]) - 1
    after = [network.counters(node) for node in range(count)]
    if ids < IDS_MIN:
        sys.exit(f"{topology}: only {ids} ids were clear enough to compare, {IDS_MIN} are wanted")
    sent = [after[node]["tx"][0] - before[node]["tx"][0] - HEADERS * (after[node]["tx"][1] - before[node]["tx"][1]) for node in range(count)]
    if replicas == 1:
        compare_bytes(topology, sent, bramble.shape(model), rows, len(expected), arguments.collective)
    return ids


def compare_bytes(topology, sent, shape, rows, requests, collective):
    nodes, total = formula(shape, topology, rows)
    more = PER_TOKEN * rows + PER_REQUEST * requests
    print(f"{topology:8} all nodes send {sum(sent) / rows / 1e3:8.1f} kB a token, formula {total / rows / 1e3:8.1f}", flush=True)
    for node, (bytes, most) in enumerate(zip(sent, nodes)):
        if bytes > 1.02 * most + more:
            sys.exit(f"{topology}: pi{node + 1} sends {bytes} bytes, the formula says {most} and {more} more are allowed")
    if sum(sent) > 1.02 * total + len(sent) * more:
        sys.exit(f"{topology}: {sum(sent)} bytes are sent, the formula says {total}")
    # A counter that counts nothing must not pass. With more ranks `auto` may choose what sends less than direct does.
    ranks = parts(topology)[2]
    least = 0.9 if ranks <= 2 or collective == "direct" else 0.9 * 2 / ranks
    if sum(sent) < least * total:
        sys.exit(f"{topology}: {sum(sent)} bytes are sent, the formula says {total}: is the exchange over these links?")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default="tp2,tp4,pp2,pp2-tp2")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--model", default=os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf"))
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--collective", help="the one that is asked for, as console takes it")
    arguments = parser.parse_args()
    topologies = arguments.topologies.split(",")
    counts = [replicas * stages * ranks for replicas, stages, ranks in map(parts, topologies)]
    model = os.path.abspath(arguments.model)
    # A busy machine must not look like a lost node.
    settings = "silent_ms = 30000\nstall_ms = 60000\n"
    with Network(max(counts), arguments.rate, arguments.delay_ms) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        network.add_daemons(cluster, settings)
        one = [bramble.generate(cluster.daemons[:1], os.path.basename(model), prompt, arguments.tokens, "--logprobs", "2", enter=network.enter())
               for prompt in bramble.PROMPTS]
        for topology in topologies:
            ids = check(network, cluster.daemons, model, topology, one, arguments)
            print(f"{topology:8} {ids} ids as one node's", flush=True)


if __name__ == "__main__":
    bramble.command(main)
