#!/usr/bin/env python3
"""Checks that a hop over a link of 100 Mb/s is reported as slow: a pipeline of single nodes in network namespaces,
first with links of 1 Gb/s, then with a slower link of the first node, whose bucket is smaller than a message of a
decoded token.

usage: tests/netns/slow_hop.py [--topology pp2] [--runs 20] [--tokens 64] [--shape tinyllama-1.1b] [--format q8_0]
[--rate 100mbit] [--attempts N] [--json]

Expected: `console sync --json` (hops and verdict) and `/metrics` report the hop after each answer of --tokens tokens
while the link is slow, and no hop and no node while it is not. Another program that takes time from one node makes that
node slow indeed: --attempts N repeats a run that differs, up to N times in all. Exit code 1 if a run differs in all its
attempts.
"""
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
from network import BURST, Network

# Size of one frame; longer messages wait for the rate.
SMALL_BURST = "2kb"
# Clock offsets are estimated from heartbeats: four exchanges, and more so that a fast one is among them.
HEARTBEAT_MS, BEATS = 100, 20
# The gateway's own reports come every quarter of a second.
REPORT_S = 0.6
HTTP = "127.0.0.1:8080"


def look(network, cluster):
    """The slow hops, the slow nodes and the verdict that `console sync --json` reports."""
    nodes = ",".join(daemon.address for daemon in cluster.daemons)
    shown = bramble.console("sync", "--nodes", nodes, enter=network.enter())
    hops = [(hop["from"], hop["to"]) for hop in shown["hand_overs"] if hop["slow"]]
    named = [shown[key]["node"] for key in ("slow_stage", "straggler") if shown[key]]
    return hops, named, shown["verdict"] or ""


def runs(network, cluster, model, arguments, expected):
    """The runs that differ from what is expected."""
    running = [daemon.process.pid for daemon in cluster.daemons]
    wrong = []
    for run in range(arguments.runs):
        def once():
            bramble.generate(cluster.daemons, model, "abcdefgh", arguments.tokens, "--topology", arguments.topology, enter=network.enter(), context=512)
            hops, named, verdict = look(network, cluster)
            time.sleep(REPORT_S)
            told_hops, told_nodes = bramble.blamed(HTTP, network.enter(0))
            found = {"run": run, "sync": hops, "metrics": told_hops, "verdict": verdict, "nodes": named + told_nodes}
            says = all(name in verdict for name in expected[0]) if expected else not verdict
            # A program that takes time from a node makes the node slow, but no hop.
            if hops != expected or told_hops != expected:
                wrong.append(found)
                return [[]]
            return [[] if says and not named and not told_nodes else [found]]

        wrong += bramble.repeated(arguments.attempts, once, running)[0]
    return wrong


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--topology", default="pp2")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--format", default="q8_0")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--attempts", type=int, default=1)
    arguments = parser.parse_args()
    bramble.favour()
    path = bramble.model(arguments.shape, arguments.format, os.path.join(bramble.ROOT, "target", "speed"))
    wrong, missed = {}, []
    with Network(int(arguments.topology.removeprefix("pp")), "1gbit") as network, bramble.Cluster(os.path.dirname(path)) as cluster:
        settings = f'heartbeat_ms = {HEARTBEAT_MS}\nmdns = false\nthreads = 1\nhttp = "{HTTP}"\n' + bramble.QUIET
        network.add_daemons(cluster, settings, pin=True)
        model = os.path.basename(path)
        bramble.generate(cluster.daemons, model, "abcdefgh", 8, "--topology", arguments.topology, enter=network.enter(), context=512)
        # The gateway watches all nodes from the first scrape on.
        bramble.blamed(HTTP, network.enter(0))
        time.sleep(BEATS * HEARTBEAT_MS / 1e3)
        for name, rate, burst, expected in (("1gbit", "1gbit", BURST, []), (arguments.rate, arguments.rate, SMALL_BURST, [("pi1", "pi2")])):
            network.limit(0, rate, burst)
            wrong[name] = runs(network, cluster, model, arguments, expected)
            missed += [f"pi1's link at {name}: {one}" for one in wrong[name]]
            if not arguments.json:
                print(f"pi1's link has {name}: {arguments.runs - len(wrong[name])} of {arguments.runs} runs as expected", flush=True)
    bramble.finish({"wrong": wrong}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
