#!/usr/bin/env python3
"""A flood of unauthenticated connections against one node that generates: flood.py [--seconds 60] [--rate 1000].

brambled is pinned to core 0, the flooder to core 1. The flood opens --rate connections per second: a third sends
nothing (half-open), a third sends garbage, a third sends a valid preamble and a handshake with a wrong key. Three runs
of the same completion: without a flood, with the same flood against a bare listener on core 0 that accepts and closes,
and with the flood against the node. Prints the tokens (must be equal), the time per token, its ratio to the flood
against the bare listener, and memory before and after. Needs two cores.

cargo build --release --locked --workspace
"""
import argparse
import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

# Maximum number of open connections of the flood; the oldest is closed for the next.
OPEN_MAX = 2000
# Source addresses of the flood: with fewer, the node rejects most of it at once.
SOURCES = 4
# From linux/in.h; Python has no constant for it.
BIND_ADDRESS_NO_PORT = 24
PREAMBLE = b"BRAMBLE\n\x04\x00\x04\x00\x01\x00\x02\x00"


def words(number):
    """The bytes that a connection of the flood sends."""
    kind = number % 3
    if kind == 0:
        return b""
    if kind == 1:
        return random.randbytes(random.randrange(1, 512))
    message = random.randbytes(200)
    return PREAMBLE + len(message).to_bytes(2, "little") + message


def flood(address, rate, seconds):
    """Runs on core 1 until its time is over; prints the number of connections that it opened."""
    os.sched_setaffinity(0, {1})
    host, port = address.rsplit(":", 1)
    sockets, opened, failed, begin = [], 0, 0, time.monotonic()
    while time.monotonic() - begin < seconds:
        due = int((time.monotonic() - begin) * rate)
        if opened >= due:
            time.sleep(0.001)
            continue
        try:
            one = socket.socket()
            one.setblocking(False)
            # Uses another address than the console, as in practice; the port is chosen at connect time.
            one.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
            one.bind((f"127.9.9.{1 + opened % SOURCES}", 0))
            one.connect_ex((host, int(port)))
            sockets.append((one, words(opened)))
        except OSError:
            failed += 1
        opened += 1
        # A connection opened a moment ago is established now.
        if len(sockets) > 20 and sockets[-20][1]:
            late, said = sockets[-20]
            sockets[-20] = (late, b"")
            try:
                late.send(said)
            except OSError:
                pass
        if len(sockets) > OPEN_MAX:
            sockets.pop(0)[0].close()
    print(json.dumps({"opened": opened, "failed": failed, "seconds": time.monotonic() - begin}))


def bare(address):
    """Accepts and closes on core 0, until standard input is closed."""
    os.sched_setaffinity(0, {0})
    host, port = address.rsplit(":", 1)
    listener = socket.create_server((host, int(port)), backlog=1024)
    print("listens", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        listener.accept()[0].close()


def itself(*arguments, **more):
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), *arguments], stdout=subprocess.PIPE, text=True, **more)


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def run(daemon, key, tokens, target, options):
    """Generates one completion after another during the flood (a single one without a flood); returns the ids of the
    first and the median time per token."""
    flooder = itself("--flood", target, "--rate", str(options.rate), "--seconds", str(options.seconds)) if target else None
    if flooder:
        time.sleep(1)
    ids, times, end = None, [], time.monotonic() + (options.seconds - 2 if target else 0)
    while not times or time.monotonic() < end:
        found = bramble.generate([daemon], options.model, "ROMEO:", tokens, "--key", key, enter=["taskset", "-c", "1"])
        if ids is not None and found["token_ids"] != ids:
            sys.exit("the flood changed the tokens")
        ids = found["token_ids"]
        times.append(found["timings"]["tpot_ms"])
    said = json.loads(flooder.communicate()[0]) if flooder else None
    return ids, bramble.median(times), len(times), said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--models", default=os.path.join(bramble.ROOT, "packaging", "demo"))
    parser.add_argument("--model", default="bard-q8_0.gguf")
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        return flood(options.flood, options.rate, options.seconds)
    if options.bare:
        return bare(options.bare)
    with tempfile.TemporaryDirectory(prefix="bramble-flood-") as folder, bramble.Cluster(options.models) as cluster:
        key = os.path.join(folder, "cluster.key")
        bramble.console("key", "new", "--key", key)
        node, other = bramble.loopback(2)
        settings = f'key_file = "{key}"\nhttp = "off"\n' + bramble.QUIET
        daemon = cluster.add("pi1", node, enter=["taskset", "-c", "0"], settings=settings, variant=[bramble.PLAIN])
        quiet, quiet_ms, _, _ = run(daemon, key, options.tokens, None, options)
        listener = itself("--bare", other, stdin=subprocess.PIPE)
        listener.stdout.readline()
        beside, beside_ms, _, _ = run(daemon, key, options.tokens, other, options)
        listener.stdin.close()
        listener.wait()
        before = resident(daemon.process.pid)
        under, under_ms, answers, said = run(daemon, key, options.tokens, node, options)
        after = resident(daemon.process.pid)
        print(f"flood: {said['opened']} connections in {said['seconds']:.0f} s ({said['failed']} failed), {answers} answers during the flood")
        print(f"tokens: {'unchanged' if quiet == beside == under else 'CHANGED'}")
        print(f"time per token: {quiet_ms:.3f} ms quiet, {beside_ms:.3f} ms with the bare listener flooded, {under_ms:.3f} ms under the flood")
        print(f"ratio to the bare listener: {under_ms / beside_ms:.3f}")
        print(f"memory: {before} kB before, {after} kB after")
        if quiet != under:
            sys.exit(1)


if __name__ == "__main__":
    bramble.command(main)
