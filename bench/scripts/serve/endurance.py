#!/usr/bin/env python3
"""Many requests of all kinds over four daemons: none may fail, and memory, open files and threads of the daemons must
stay constant.

cargo build --release --locked --workspace && bench/scripts/serve/endurance.py [--requests 1000]
"""
import argparse
import asyncio
import os
import random
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")


async def one(hosts, number, chance):
    """Sends a request of a random kind; returns its error, if any."""
    host, kind = chance.choice(hosts), chance.randrange(5)
    prompt = f"{chance.choice(bramble.PROMPTS)} {number % 50}"
    body = {"model": MODEL, "max_tokens": chance.randrange(1, 24), "temperature": chance.choice([0, 1.0]), "seed": number}
    messages = [{"role": "user", "content": prompt}]
    if kind == 0:
        answer = await client.ask(host, "POST", "/v1/completions", {**body, "prompt": prompt})
    elif kind == 1:
        answer = await client.ask(host, "POST", "/v1/completions", {**body, "prompt": prompt, "stream": True})
    elif kind == 2:
        answer = await client.ask(host, "POST", "/v1/chat/completions", {**body, "messages": messages})
    elif kind == 3:
        answer = await client.ask(host, "POST", "/v1/chat/completions", {**body, "messages": messages, "stream": True, "logprobs": True, "top_logprobs": 2})
    else:
        answer = await client.ask(host, "GET", chance.choice(["/v1/models", "/health", "/metrics"]))
    is_whole = answer.status == 200 and answer.error is None and (answer.whole or answer.body)
    return None if is_whole else f"request {number} of kind {kind} at {host}: status {answer.status}, {answer.error or answer.body[:200]}"


async def run(daemons, arguments):
    hosts, chance = [client.place(daemon) for daemon in daemons], random.Random(arguments.seed)
    seen, failed = [], []
    await client.until_healthy(hosts)
    for begin in range(0, arguments.requests, arguments.concurrency):
        numbers = range(begin, min(begin + arguments.concurrency, arguments.requests))
        failed += [line for line in await asyncio.gather(*(one(hosts, number, chance) for number in numbers)) if line]
        if (begin // arguments.concurrency) % 25 == 0:
            await asyncio.sleep(0.5)
            seen.append([client.resources(daemon) for daemon in daemons])
    await asyncio.sleep(1)
    seen.append([client.resources(daemon) for daemon in daemons])
    return seen, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--topology", default="tp4")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with bramble.Cluster(MODELS) as cluster:
        daemons = [cluster.add(f"pi{index + 1}", address, settings=bramble.QUIET + "threads = 1\n") for index, address in enumerate(bramble.loopback(4))]
        bramble.generate(daemons, MODEL, "ROMEO:", 2, "--topology", arguments.topology)
        seen, failed = asyncio.run(run(daemons, arguments))
    # After the first third, everything that is allocated once (buffers, traces, cached prefixes) exists.
    middle, last = seen[len(seen) // 3], seen[-1]
    for name, then, now in zip((daemon.name for daemon in daemons), middle, last):
        print(f"{name}: resident {then['resident'] / 1e6:.1f} -> {now['resident'] / 1e6:.1f} MB, files {then['files']} -> {now['files']}, threads {then['threads']} -> {now['threads']}")
        if now["resident"] > then["resident"] * 1.05 + 2e6 or now["files"] > then["files"] + 4 or now["threads"] > then["threads"] + 2:
            failed.append(f"{name} grows")
    print(f"{arguments.requests} requests, {len(failed)} failures")
    for line in failed[:20]:
        print(line, file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    bramble.command(main)
