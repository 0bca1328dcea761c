#!/usr/bin/env python3
"""Bytes that nodes write to storage, which wears out SD cards: two daemons with a topology, first idle, then with
requests over HTTP. Bytes come from /proc/PID/io and include each daemon's log. Exit code 1 above 1 MB a day when idle,
or if the requests cause any write.

usage: bench/scripts/limits/writes.py [--idle-seconds N] [--heartbeat-ms N] [--requests N] [--programs DIR] [--json]

Heartbeats faster than the default of 250 ms compress time: 150 s at 10 ms have as many beats as an hour. Everything
else (the check for lost members, reading the machine's health) keeps its usual interval. Leaves nothing behind.
"""
import argparse
import asyncio
import json
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble  # noqa: E402
import client  # noqa: E402

MODEL = "bard-q8_0.gguf"
DAY = 86_400
IDLE_MAX = 1_000_000


def written(daemon):
    with open(f"/proc/{daemon.process.pid}/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def wait_for(what, condition):
    deadline = time.monotonic() + bramble.PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"timed out waiting until {what}")
        time.sleep(0.05)


def has_packed(daemon):
    folder = os.path.join(daemon.state, "packed")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return bool(names) and all(name.endswith(".shard") for name in names)


async def ask_all(host, count):
    """Requests `count` short completions, eight at a time."""
    body = {"prompt": "ROMEO:", "max_tokens": 2, "temperature": 0}
    for begin in range(0, count, 8):
        asked = [client.ask(host, "POST", "/v1/completions", body) for _ in range(min(8, count - begin))]
        for answer in await asyncio.gather(*asked):
            if answer.status != 200:
                sys.exit(f"a request failed with {answer.status}: {answer.body[:200]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle-seconds", type=float, default=3600)
    parser.add_argument("--heartbeat-ms", type=int, default=250)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--programs", default=bramble.RELEASE, help="folder of brambled and console")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bramble.RELEASE = arguments.programs
    settings = f"heartbeat_ms = {arguments.heartbeat_ms}\nsilent_ms = 30000\nstall_ms = 60000\n"
    with bramble.Cluster(os.path.join(bramble.ROOT, "packaging", "demo")) as cluster:
        daemons = [cluster.add(f"pi{index + 1}", address, settings=settings) for index, address in enumerate(bramble.loopback(2))]
        bramble.generate(daemons, MODEL, "ROMEO:", 2)
        for daemon in daemons:
            wait_for(f"{daemon.name} has written its packed shard", lambda: has_packed(daemon))
        quiet = [len(daemon.text()) for daemon in daemons]
        begin, since = [written(daemon) for daemon in daemons], time.monotonic()
        time.sleep(arguments.idle_seconds)
        seconds, idle = time.monotonic() - since, [written(daemon) - before for daemon, before in zip(daemons, begin)]
        begin, lines = [written(daemon) for daemon in daemons], [len(daemon.text().splitlines()) for daemon in daemons]
        asyncio.run(ask_all(client.place(daemons[0]), arguments.requests))
        asked = [written(daemon) - before for daemon, before in zip(daemons, begin)]
        lines = [len(daemon.text().splitlines()) - before for daemon, before in zip(daemons, lines)]
        said = [f"{daemon.name}: {line}" for daemon, since in zip(daemons, quiet) for line in daemon.text(since).splitlines()]
    a_day = [round(count * DAY / seconds) for count in idle]
    is_good = max(a_day) <= IDLE_MAX and not any(asked) and not any(lines)
    if arguments.json:
        print(json.dumps({"idle_seconds": round(seconds, 1), "idle_bytes": idle, "idle_bytes_a_day": a_day,
                          "requests": arguments.requests, "request_bytes": asked, "request_log_lines": lines, "good": is_good}))
    else:
        print(f"idle for {seconds:.0f} s: {idle} bytes, {[f'{count / 1e6:.2f}' for count in a_day]} MB a day (wanted at most 1.00)")
        print(f"{arguments.requests} requests: {asked} bytes, {lines} lines of the log (wanted 0)")
    for line in said:
        print(line, file=sys.stderr)
    sys.exit(0 if is_good else 1)


bramble.command(main)
