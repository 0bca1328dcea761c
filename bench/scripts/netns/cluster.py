#!/usr/bin/env python3
"""Daemons in network namespaces that behave like machines on a network: a switch between them, one link of 1 Gb/s (or
--rate) for each in both directions, and with --delay-ms a delay each way. Runs a command next to them, or waits for
Ctrl-C.

usage: bench/scripts/netns/cluster.py --models DIR [--nodes N] [--rate 1gbit] [--delay-ms D] [--threads T] [--pin] [COMMAND ..]

The command runs at the switch with BRAMBLE_NODES set, for example
target/release/console generate --model bard-q8_0.gguf --prompt ROMEO: with --models packaging/demo --nodes 2.

Needs root, ip and tc. The namespaces have no names: they disappear with their processes, which end with this script
even if it is killed. Concurrent runs are isolated from each other; all use the addresses 10.77.0.x.
"""
import argparse
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
from network import Network


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="link rate in the notation of tc; 0: no limit")
    parser.add_argument("--delay-ms", type=float, default=0, help="each way; frames then go through a switch in userspace")
    parser.add_argument("--models", required=True, metavar="DIR")
    parser.add_argument("--threads", type=int, help="compute threads of each daemon")
    parser.add_argument("--pin", action="store_true", help="pin each daemon to one core, round-robin")
    parser.add_argument("--settings", default="", help="lines of each daemon's configuration file")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    settings = arguments.settings.replace("\\n", "\n") + "\n"
    if arguments.threads:
        settings += f"threads = {arguments.threads}\n"
    code = 0
    with Network(arguments.nodes, arguments.rate, arguments.delay_ms) as network, bramble.Cluster(arguments.models) as cluster:
        network.add_daemons(cluster, settings, arguments.pin)
        nodes = ",".join(daemon.address for daemon in cluster.daemons)
        print(f"BRAMBLE_NODES={nodes}, enter with: {' '.join(network.enter())}", file=sys.stderr)
        try:
            if arguments.command:
                environment = {**os.environ, "BRAMBLE_NODES": nodes}
                code = subprocess.run([*network.enter(), *arguments.command], env=environment).returncode
            else:
                network.wait()
        except KeyboardInterrupt:
            code = 130
    sys.exit(code)


if __name__ == "__main__":
    bramble.command(main)
