#!/usr/bin/env python3
"""Compares the link measurements of nodes with the configured links: daemons behind a switch with a rate, and behind one with a delay. `console
bench links` should report the payload that TCP carries at that rate (1448 of 1538 bytes on the wire) and a round trip of two delays. A link
that is slowed down in one direction should show as slow in that direction only.

usage: tests/netns/links.py [--nodes 3] [--rate 100mbit] [--delay-ms 5] [--json]

Exit code 1 if a throughput is off by more than 10 % or a round trip by more than 20 %, or if a short measurement of all links (as
`console plan` runs it) takes longer than two seconds.
"""
import argparse
import json
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
from network import BURST, Network
from switch import bits_per_second

PAYLOAD = 1448 / 1538
RATE_SHARE, DELAY_SHARE = 0.10, 0.20
SHORT_SECONDS = 2


def measure(network, nodes, *more):
    """Runs `console bench links`; returns the links by (sender, receiver) and the incast by receiver."""
    found = bramble.console("bench", "links", "--nodes", nodes, *more, enter=network.enter())["nodes"]
    links = {(link["peer"], node["node"]): link for node in found for link in node["links"]}
    return links, {node["node"]: node["incast"] for node in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay-ms", type=float, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    models, rows = os.path.join(bramble.ROOT, "packaging", "demo"), []
    wanted = PAYLOAD * bits_per_second(arguments.rate) / 1e6

    def row(what, found, wanted, share):
        rows.append({"what": what, "found": round(found, 3), "wanted": round(wanted, 3), "holds": abs(found - wanted) <= share * wanted})

    def below(what, found, most):
        rows.append({"what": what, "found": round(found, 3), "at_most": most, "holds": found <= most})

    def mbits(link):
        return link["bits_per_second"] / 1e6

    with Network(arguments.nodes, arguments.rate) as network, bramble.Cluster(models) as cluster:
        network.add_daemons(cluster, "mdns = false\n")
        nodes = ",".join(daemon.address for daemon in cluster.daemons)
        links, incasts = measure(network, nodes, "--stream-ms", "1000")
        for (sender, receiver), link in links.items():
            row(f"{sender} > {receiver}, Mb/s", mbits(link), wanted, RATE_SHARE)
        for receiver, incast in incasts.items():
            row(f"{incast['senders']} senders to {receiver}, Mb/s", mbits(incast), wanted, RATE_SHARE)
        # One direction of one link at a quarter of the rate.
        quarter = f"{int(bits_per_second(arguments.rate) / 4000)}kbit"
        network.do(0, "tc", "qdisc", "change", "dev", "e0", "root", "tbf", "rate", quarter, "burst", BURST, "latency", "50ms")
        links, _ = measure(network, nodes, "--stream-ms", "1000", "--no-incast")
        for (sender, receiver), link in links.items():
            row(f"{sender} > {receiver} where pi1 sends at {quarter}, Mb/s", mbits(link), wanted / 4 if sender == "pi1" else wanted, RATE_SHARE)
    with Network(arguments.nodes, "1gbit", arguments.delay_ms) as network, bramble.Cluster(models) as cluster:
        network.add_daemons(cluster, "mdns = false\n")
        nodes = ",".join(daemon.address for daemon in cluster.daemons)
        links, _ = measure(network, nodes, "--no-incast")
        for (sender, receiver), link in links.items():
            row(f"{sender} > {receiver}, round trip in ms", link["p50"] / 1e6, 2 * arguments.delay_ms, DELAY_SHARE)
    with Network(8) as network, bramble.Cluster(models) as cluster:
        network.add_daemons(cluster, "mdns = false\n")
        nodes = ",".join(daemon.address for daemon in cluster.daemons)
        begin = time.monotonic()
        links, _ = measure(network, nodes, "--no-incast", "--pings", "17", "--stream-ms", "14")
        below("8 nodes in a short measurement at 1 Gb/s, s", time.monotonic() - begin, SHORT_SECONDS)
        row("its median throughput, Mb/s", bramble.median([mbits(link) for link in links.values()]), PAYLOAD * 1000, RATE_SHARE)
    for one in rows if not arguments.json else []:
        bound = f"wanted {one['wanted']:.1f}" if "wanted" in one else f"at most {one['at_most']:.1f}"
        print(f"  {one['what']:60} {one['found']:8.2f}, {bound}{'' if one['holds'] else '  MISSED'}")
    if arguments.json:
        print(json.dumps(rows))
    sys.exit(not all(one["holds"] for one in rows))


if __name__ == "__main__":
    bramble.command(main)
