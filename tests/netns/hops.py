#!/usr/bin/env python3
"""Compares the hand-overs that nodes report with packet captures: a pipeline of two stages in network namespaces, each
packet captured with its time at both ends of the link. For each direction, the median hop in `console sync` is compared
with the median time between the first packet of a message at its sender and its last one at its receiver, and the bytes
that ranks report as sent with the payloads of their connection.

usage: tests/netns/hops.py [--rate 1gbit] [--delay-ms D] [--model FILE] [--prompt-words N] [--tokens N] [--attempts N]

Wanted: hops within 10 % or 50 us of the captured ones, bytes within 1 %. Other work on this machine delays heartbeats,
which compare the clocks: --attempts N repeats the measurement while a target is missed, up to N times in all. Exit code
1 if every attempt misses a target.
"""
import argparse
import collections
import json
import os
import struct
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
from network import Network

CAPTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "capture.py")
# Kinds of frames (shared/protocol/src/frame.rs), and the size of their header, which holds length and step.
HAND_OVER, DRAWN, HEADER = 6, 7, 64
HOP_SHARE, HOP_NS, BYTES_SHARE = 0.10, 50_000, 0.01
# Heartbeats compare the clocks: four exchanges, and a few more so that a fast one is among them.
HEARTBEAT_MS, BEATS = 100, 20


class Tap:
    """The captured packets of one node."""

    def __init__(self, network, node):
        command = [*network.enter(node), sys.executable, CAPTURE]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit("packets cannot be captured on this machine")

    def end(self):
        out, _ = self.process.communicate("", timeout=60)
        return [json.loads(line) for line in out.splitlines()]


def frames(packets, kind):
    """The messages of a kind: connection, sequence number of the first byte, number of bytes."""
    for at, leaves, source, target, sequence, length, head in packets:
        head = bytes.fromhex(head)
        if len(head) == HEADER and head[0] == kind and head[1] == 0:
            payload, step = struct.unpack_from("<I", head, 4)[0], struct.unpack_from("<Q", head, 24)[0]
            yield at, leaves, (source, target), sequence, HEADER + payload, step


def hops(sent, received, kind):
    """Nanoseconds from the first packet of each message at its sender to the last one at its receiver, and its
    connection."""
    # End of each received segment, by connection.
    ends = collections.defaultdict(list)
    for at, leaves, source, target, sequence, length, _ in received:
        if not leaves:
            ends[source, target].append((sequence + length, at))
    found, connection = [], None
    for at, leaves, way, sequence, length, _ in frames(sent, kind):
        if not leaves:
            continue
        last = [came for end, came in ends[way] if 0 <= end - (sequence + length) < 1 << 20 and came >= at]
        if last:
            found.append(min(last) - at)
            connection = way
    return found, connection


def payload_bytes(packets, connection):
    """Bytes sent on a connection, without retransmissions."""
    return sum(length for length in {sequence: length for _, leaves, source, target, sequence, length, _ in packets if leaves and (source, target) == connection}.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--model", default=os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf"))
    parser.add_argument("--prompt-words", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--attempts", type=int, default=1)
    arguments = parser.parse_args()
    bramble.favour()
    wrong = []
    (missed,) = bramble.repeated(arguments.attempts, lambda: [measure(arguments, wrong)])
    missed += wrong
    for line in missed:
        print(f"MISSED: {line}", file=sys.stderr)
    sys.exit(bool(missed))


def measure(arguments, wrong):
    """Runs a pipeline once and prints the reported and the captured figures. Returns the times that are off; deviations
    that no other program can cause are appended to `wrong`."""
    models, name = os.path.split(os.path.abspath(arguments.model))
    prompt = " ".join(["now is the winter of our discontent"] * (1 + arguments.prompt_words // 7))
    with Network(2, arguments.rate, arguments.delay_ms) as network, bramble.Cluster(models) as cluster:
        network.add_daemons(cluster, f"heartbeat_ms = {HEARTBEAT_MS}\nmdns = false\n")
        run = lambda tokens: bramble.generate(cluster.daemons, name, prompt, tokens, "--topology", "pp2", enter=network.enter())
        run(2)
        time.sleep(BEATS * HEARTBEAT_MS / 1e3)
        taps = [Tap(network, node) for node in range(2)]
        before = [network.counters(node) for node in range(2)]
        answer = run(arguments.tokens)
        nodes = ",".join(daemon.address for daemon in cluster.daemons)
        shown = bramble.console("sync", "--nodes", nodes, enter=network.enter())
        after = [network.counters(node) for node in range(2)]
        packets = [tap.end() for tap in taps]
    missed = compare(packets, shown, answer, wrong)
    for node in range(2):
        seen = sum(length for _, leaves, _, _, _, length, _ in packets[node] if leaves)
        bytes_, count = (after[node]["tx"][field] - before[node]["tx"][field] for field in (0, 1))
        print(f"pi{node + 1}: the interface sent {bytes_} bytes in {count} packets, captured were {seen} of payload")
    return missed


def compare(packets, shown, answer, wrong):
    missed = []
    by_names = {(hop["from"], hop["to"]): hop for hop in shown["hand_overs"]}
    for sender, receiver, kind in ((0, 1, HAND_OVER), (1, 0, DRAWN)):
        names = (f"pi{sender + 1}", f"pi{receiver + 1}")
        found, connection = hops(packets[sender], packets[receiver], kind)
        hop = by_names.get(names)
        if not found or not hop or not hop["timed"]:
            wrong.append(f"{names[0]} > {names[1]}: {len(found)} captured hand-overs, reported: {hop}")
            continue
        ours, theirs = hop["p50_ns"], bramble.median(found)
        is_near = abs(ours - theirs) <= max(HOP_NS, HOP_SHARE * theirs)
        sent, counted = sum(answer["ranks"][sender][phase]["bytes_sent"] for phase in ("prefill", "decode")), payload_bytes(packets[sender], connection)
        share = sent / max(1, counted)
        print(f"{names[0]} > {names[1]}: {len(found)} hand-overs, hop p50 {ours / 1e3:.1f} us reported, {theirs / 1e3:.1f} us captured; "
              f"{sent} bytes reported, {counted} on the connection ({share:.4f})")
        if not is_near:
            missed.append(f"{names[0]} > {names[1]}: hop {ours / 1e3:.1f} us, captured {theirs / 1e3:.1f}")
        if abs(share - 1) > BYTES_SHARE:
            wrong.append(f"{names[0]} > {names[1]}: {sent} bytes reported, {counted} on the connection")
    return missed


if __name__ == "__main__":
    bramble.command(main)
