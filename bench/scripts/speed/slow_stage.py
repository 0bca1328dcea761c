#!/usr/bin/env python3
"""The node that `console sync` and `/metrics` name in pipelines of one rank per stage while one node is limited to four
fifths of its core, and while no node is limited: daemons on separate cores, limited by a cpu control group with periods
of 1.25 ms.

usage: bench/scripts/speed/slow_stage.py [--topologies pp2,pp4] [--runs 20] [--tokens 64] [--shape tinyllama-1.1b]
[--format q8_0] [--limit 0.8] [--json]

Expected: both name the node after each answer of --tokens tokens while it is limited, and no node otherwise. Needs
root; prints SKIPPED without a control group for processors. Exit code 1 if a run differs.
"""
import argparse
import json
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import groups

PERIOD_US = 1250
# The gateway's own reports come every quarter of a second.
REPORT_S = 0.6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default="pp2,pp4")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--format", default="q8_0")
    parser.add_argument("--limit", type=float, default=0.8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model = bramble.model(arguments.shape, arguments.format, os.path.join(bramble.ROOT, "target", "speed"))
    rows, missed = [], 0
    for topology in arguments.topologies.split(","):
        count = int(topology.removeprefix("pp"))
        with bramble.Cluster(os.path.dirname(model)) as cluster:
            held = [groups.Processor(f"pi{index + 1}") for index in range(count)]
            try:
                if not all(group.folder for group in held):
                    print(f"SKIPPED {topology}: {held[0].reason}")
                    continue
                cores = sorted(os.sched_getaffinity(0))
                for index, address in enumerate(bramble.loopback(count)):
                    enter = [*held[index].enter(), "taskset", "-c", str(cores[index % len(cores)])]
                    settings = bramble.QUIET + f'threads = 1\nhttp = "{http(address)}"\n'
                    cluster.add(f"pi{index + 1}", address, enter=enter, settings=settings)
                rows += runs(cluster, held, os.path.basename(model), topology, arguments)
            finally:
                for daemon in cluster.daemons:
                    daemon.stop()
                for group in held:
                    group.remove()
    for row in rows:
        missed += row["wrong"]
        print(f"{row['topology']} {row['limited'] or 'no node'} limited: {row['runs'] - row['wrong']} of {row['runs']} correct; factors {row['factors']}")
    if arguments.json:
        print(json.dumps(rows))
    sys.exit(missed > 0)


def http(address):
    """The HTTP address of the daemon at an address."""
    return address.replace(":9999", ":9980")


def runs(cluster, held, model, topology, arguments):
    nodes = ",".join(daemon.address for daemon in cluster.daemons)
    generate = lambda tokens: bramble.generate(cluster.daemons, model, "abcdefgh", tokens, "--topology", topology, context=512)
    generate(8)
    rows = []
    # The gateway watches all nodes from the first scrape on.
    bramble.blamed(http(cluster.daemons[0].address))
    for limited in [None, *cluster.daemons]:
        row = {"topology": topology, "limited": limited and limited.name, "runs": arguments.runs, "wrong": 0, "factors": []}
        for group, daemon in zip(held, cluster.daemons):
            group.limit(arguments.limit if daemon is limited else None, PERIOD_US)
        for _ in range(arguments.runs):
            generate(arguments.tokens)
            found = bramble.console("sync", "--nodes", nodes)["slow_stage"]
            time.sleep(REPORT_S)
            _, named = bramble.blamed(http(cluster.daemons[0].address))
            row["wrong"] += (found and found["node"]) != row["limited"] or named != [row["limited"]][: bool(limited)]
            row["factors"].append(round(found["factor"], 2) if found else None)
        rows.append(row)
    return rows


if __name__ == "__main__":
    bramble.command(main)
