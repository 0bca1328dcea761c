#!/usr/bin/env python3
"""Daemons that serve and have nothing to do: their share of a core and their resident memory, first after one answer, then
after requests of all lengths.

usage: bench/scripts/speed/idle.py [--topology tp1] [--seconds 20] [--requests 400] [--programs DIR] [--json]

The model is the demo's; its shard and KV cache are part of the resident memory, as far as they were used. Wanted after one
answer: at most 1 % of a core and 25 MB beside the shard. --programs: other ones than those of target/release, for example
those of the packages. Run it on an otherwise idle machine.

cargo build --release --locked --workspace
"""
import argparse
import asyncio
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client
import layouts

CORE_PERCENT, RESIDENT_MB = 1.0, 25.0


def idle(daemons, seconds):
    """Percent of a core, and megabytes: resident, of the shard with its whole KV cache, of stored keys and values."""
    before = [bramble.processor_seconds(daemon.process.pid) for daemon in daemons]
    time.sleep(seconds)
    found = []
    for daemon, begin in zip(daemons, before):
        share = (bramble.processor_seconds(daemon.process.pid) - begin) / seconds
        node = bramble.console("status", "--nodes", daemon.address)["nodes"][0]
        stored = bramble.console("kv", "--nodes", daemon.address)["nodes"][0]["store"]
        megabytes = {"resident": client.resources(daemon)["resident"], "shard": node["shard_bytes"], "stored": stored["bytes"]}
        found.append({"node": daemon.name, "core_percent": round(100 * share, 2), **{name: round(size / 1e6, 1) for name, size in megabytes.items()}})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="tp1")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--programs", metavar="DIR")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bramble.RELEASE = os.path.abspath(arguments.programs or bramble.RELEASE)
    with bramble.Cluster(os.path.dirname(layouts.MODEL)) as cluster:
        daemons, hosts = layouts.serve(cluster, layouts.MODEL, arguments.topology)
        phases = {"after one answer": idle(daemons, arguments.seconds)}
        request = argparse.Namespace(seed=1, ids=layouts.IDS, model=layouts.MODEL, requests=arguments.requests, at_a_time=8)
        failed, differ = asyncio.run(layouts.load(hosts, request))
        phases[f"after {arguments.requests} requests"] = idle(daemons, arguments.seconds)
    for phase, nodes in phases.items():
        for node in nodes:
            print(f"{phase}: {node['node']} {node['core_percent']} % of a core; {node['resident']} MB resident; shard {node['shard']} MB, stored keys and values {node['stored']} MB", file=sys.stderr)
    wrong = [*failed, *differ]
    for node in phases["after one answer"]:
        if node["core_percent"] > CORE_PERCENT or node["resident"] - node["shard"] > RESIDENT_MB:
            wrong.append(f"{node['node']} misses the goal of {CORE_PERCENT} % of a core and {RESIDENT_MB} MB")
    bramble.finish({"phases": phases}, wrong, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
