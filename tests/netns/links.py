#!/usr/bin/env python3
"""Compares the link measurements of nodes with the configured links: daemons behind a switch with a rate, and behind
one with a delay. `console bench links` should report the payload that TCP carries at that rate (1448 of 1538 bytes on
the wire) and a round trip of two delays. A link that is slowed down in one direction should show as slow in that
direction only.

usage: tests/netns/links.py [--nodes 3] [--rate 100mbit] [--delay-ms 5] [--attempts N] [--json]

Exit code 1 if a throughput is off by more than 10 % or a round trip by more than 20 %, or if a short measurement of all
links (as `console topology plan` runs it) takes longer than two seconds. --attempts N measures again, N times in all, while one
is off.
"""
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
from network import Network
from switch import bits_per_second

PAYLOAD = 1448 / 1538
RATE_SHARE, DELAY_SHARE = 0.10, 0.20
SHORT_SECONDS = 2


def measure(network, cluster, *more):
    """Runs `console bench links`; returns the links by (sender, receiver) and the incast by receiver. Ends the script
    if one is missing."""
    nodes, count = ",".join(daemon.address for daemon in cluster.daemons), len(cluster.daemons)
    found = bramble.console("bench", "links", "--nodes", nodes, *more, enter=network.enter())["nodes"]
    links = {(link["peer"], node["node"]): link for node in found for link in node["links"]}
    incasts = {node["node"]: node["incast"] for node in found if node["incast"]}
    # With two nodes there is a single sender to each.
    senders = 0 if "--no-incast" in more or count < 3 else count
    if len(links) != count * (count - 1) or len(incasts) != senders:
        sys.exit(f"{len(links)} links and {len(incasts)} incasts were measured, {count * (count - 1)} and {senders} are expected")
    return links, incasts


def bound(row):
    return f"wanted {row['wanted']:.1f}" if "wanted" in row else f"at most {row['at_most']:.1f}"


def compare(arguments):
    """Measures the links of all networks; returns the rows, and those that do not hold."""
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
        links, incasts = measure(network, cluster, "--stream-ms", "1000")
        for (sender, receiver), link in links.items():
            row(f"{sender} > {receiver}, Mb/s", mbits(link), wanted, RATE_SHARE)
        for receiver, incast in incasts.items():
            row(f"{incast['senders']} senders to {receiver}, Mb/s", mbits(incast), wanted, RATE_SHARE)
        # One direction of one link at a quarter of the rate.
        quarter = f"{int(bits_per_second(arguments.rate) / 4000)}kbit"
        network.limit(0, quarter)
        links, _ = measure(network, cluster, "--stream-ms", "1000", "--no-incast")
        for (sender, receiver), link in links.items():
            row(f"{sender} > {receiver} where pi1 sends at {quarter}, Mb/s", mbits(link), wanted / 4 if sender == "pi1" else wanted, RATE_SHARE)
    with Network(arguments.nodes, "1gbit", arguments.delay_ms) as network, bramble.Cluster(models) as cluster:
        network.add_daemons(cluster, "mdns = false\n")
        links, _ = measure(network, cluster, "--no-incast")
        for (sender, receiver), link in links.items():
            row(f"{sender} > {receiver}, round trip in ms", link["p50"] / 1e6, 2 * arguments.delay_ms, DELAY_SHARE)
    with Network(8) as network, bramble.Cluster(models) as cluster:
        network.add_daemons(cluster, "mdns = false\n")
        begin = time.monotonic()
        links, _ = measure(network, cluster, "--no-incast", "--pings", "17", "--stream-ms", "14")
        below("8 nodes in a short measurement at 1 Gb/s, s", time.monotonic() - begin, SHORT_SECONDS)
        row("its median throughput, Mb/s", bramble.median([mbits(link) for link in links.values()]), PAYLOAD * 1000, RATE_SHARE)
    return rows, [line(one) for one in rows if not one["holds"]]


def line(row):
    return f"{row['what']:60} {row['found']:8.2f}, {bound(row)}"


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay-ms", type=float, default=5)
    parser.add_argument("--attempts", type=int, default=1)
    arguments = parser.parse_args()
    bramble.favour()
    rows, missed = bramble.repeated(arguments.attempts, lambda: compare(arguments))
    if not arguments.json:
        print("\n".join(f"  {line(row)}" for row in rows))
    bramble.finish({"rows": rows}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
