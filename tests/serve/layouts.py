#!/usr/bin/env python3
"""Requests of all lengths, eight at a time, on every kind of layout: none may fail, and every greedy answer must equal
the one that the same layout gives to the request alone.

usage: tests/serve/layouts.py [--topologies tp1,pp2,..] [--requests 1000] [--at-a-time 8] [--seed 1] [--short] [--model FILE --ids 259-295] [--programs DIR]

Prompts have 1 to 400 tokens, answers 1 to 64. --short (for .ci/run): 150 requests on four layouts. --model: another model
than the demo's, with the ids of its words. --programs: other ones than those of target/release. Exit code 1 if a request
failed, an answer differs, or most of the long answers repeat a token or two.

cargo build --release --locked --workspace
"""
import argparse
import asyncio
import os
import random
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
import client

MODEL = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
ALL = "tp1,tp3,tp4,pp2,pp3,pp4,pp2-tp2,pp2-tp4,dp2-pp2,dp2-tp2,dp2-tp4,prefill:tp1+decode:tp1"
SHORT = "pp2,pp4,dp2-tp2,prefill:tp1+decode:tp1"
PROMPT_TOKENS, ANSWER_TOKENS, WISHES = 400, 64, 100
# Tokens of an answer whose variety is checked.
VARIED_TOKENS = 30
# Ids of whole words; special tokens have lower ids.
IDS = "300-900"


def count(topology):
    """Number of nodes of a layout."""
    nodes = 0
    for group in topology.split("+"):
        product = 1
        for part in group.rpartition(":")[2].split("-"):
            product *= int("".join(letter for letter in part if letter.isdigit()))
        nodes += product
    return nodes


def wishes(chance, ids):
    """Prompts and lengths of their answers; half of them are short, so that sequences share steps."""
    lengths = [chance.randint(1, 128 if index % 2 else PROMPT_TOKENS) for index in range(WISHES)]
    return [([chance.choice(ids) for _ in range(length)], chance.randint(1, ANSWER_TOKENS)) for length in lengths]


async def ask(host, model, wish):
    """The text of an answer and its number of tokens."""
    prompt, tokens = wish
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    answer = await client.ask(host, "POST", "/v1/completions", body)
    if answer.status != 200 or answer.error:
        raise Lost(f"status {answer.status}, {answer.error or answer.body[:200]}")
    whole = answer.json()
    return whole["choices"][0]["text"], whole["usage"]["completion_tokens"]


class Lost(Exception):
    """A request that failed."""


async def load(hosts, arguments):
    """Returns failed requests, and answers that differ from those of the request alone."""
    chance = random.Random(arguments.seed)
    first, end = map(int, arguments.ids.split("-"))
    model = os.path.basename(arguments.model)
    all_wishes = wishes(chance, range(first, end))
    alone = [await ask(hosts[0], model, wish) for wish in all_wishes]
    client.assert_varied([text for text, tokens in alone if tokens >= VARIED_TOKENS])
    failed, differ, numbers = [], [], iter(range(arguments.requests))

    async def lane():
        for number in numbers:
            index = chance.randrange(len(all_wishes))
            try:
                found = await ask(chance.choice(hosts), model, all_wishes[index])
            except (Lost, OSError) as error:
                failed.append(f"request {number}: {error}")
                continue
            if found != alone[index]:
                differ.append(f"request {number}: {found!r}, alone {alone[index]!r}")

    await asyncio.gather(*(lane() for _ in range(arguments.at_a_time)))
    return failed, differ


def serve(cluster, model, topology):
    """Daemons that serve the model, and their HTTP addresses."""
    daemons = [cluster.add(f"pi{index + 1}", address, settings=bramble.QUIET + "threads = 1\n") for index, address in enumerate(bramble.loopback(count(topology)))]
    bramble.generate(daemons, os.path.basename(model), "ROMEO:", 2, "--topology", topology, context=512)
    hosts = [client.place(daemon) for daemon in daemons]
    asyncio.run(client.until_healthy(hosts))
    return daemons, hosts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default=None)
    parser.add_argument("--requests", type=int, default=None)
    parser.add_argument("--at-a-time", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--ids", default=IDS)
    parser.add_argument("--programs", metavar="DIR")
    arguments = parser.parse_args()
    bramble.RELEASE = os.path.abspath(arguments.programs or bramble.RELEASE)
    models, model = os.path.split(os.path.abspath(arguments.model))
    arguments.requests = arguments.requests or (150 if arguments.short else 1000)
    topologies = arguments.topologies or (SHORT if arguments.short else ALL)
    code = 0
    for topology in topologies.split(","):
        with bramble.Cluster(models) as cluster:
            daemons, hosts = serve(cluster, model, topology)
            begin = time.monotonic()
            failed, differ = asyncio.run(load(hosts, arguments))
            spent = sum(bramble.processor_seconds(daemon.process.pid) for daemon in daemons)
            faults = [line for daemon in daemons for line in daemon.text().splitlines() if "the engine failed" in line]
        print(f"{topology:24} {arguments.requests} requests in {time.monotonic() - begin:.1f} s: {len(failed)} failed, {len(differ)} differ, {len(faults)} engines ended; {spent:.1f} processor seconds", flush=True)
        for line in [*failed[:3], *differ[:3], *faults[:3]]:
            print(f"   {line}", file=sys.stderr)
        code |= bool(failed or differ or faults)
    sys.exit(code)


if __name__ == "__main__":
    bramble.command(main)
