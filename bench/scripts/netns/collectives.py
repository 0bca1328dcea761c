#!/usr/bin/env python3
"""All-reduces next to a bare exchange of the same bytes, through links of 1 Gb/s (or --rate): each rank's sockets are
in a separate network namespace. Needs root, ip and tc.

usage: bench/scripts/netns/collectives.py [--ranks N] [--rate 1gbit] [OPTIONS OF bramble-bench collectives ..]
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
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="link rate in the notation of tc; 0: no limit")
    arguments, more = parser.parse_known_args()
    bramble.favour()
    with Network(arguments.ranks, arguments.rate) as network:
        places = ",".join(f"{holder.pid}@10.77.0.{node + 1}" for node, holder in enumerate(network.nodes))
        command = [bramble.program("bramble-bench"), "collectives", "--local", "--ranks", str(arguments.ranks), "--in", places, *more]
        sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    bramble.command(main)
