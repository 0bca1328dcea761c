#!/usr/bin/env python3
"""Kills (kill -9) one node after another of two replicas during streams through every node: every stream whose client
is connected to a surviving node must continue to the same text as without the loss. The other streams are requested
again with the same X-Request-Id.

cargo build --release --locked --workspace && bench/scripts/serve/lost_node.py [--topology dp2-tp2] [--streams 100]
[--tokens 48]
"""
import argparse
import asyncio
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
# With the default settings a loss is detected after at most silent_ms.
SETTINGS = "packed_shards = false\n"


def prompt(index):
    return f"{bramble.PROMPTS[index % len(bramble.PROMPTS)]} {index}"


async def expected(host, arguments):
    """The texts of an undisturbed cluster."""
    texts = {}
    for begin in range(0, arguments.streams, 8):
        part = range(begin, min(begin + 8, arguments.streams))
        answers = await asyncio.gather(*(client.complete(host, prompt(index), arguments.tokens, model=MODEL, temperature=0.7, seed=index) for index in part))
        for index, answer in zip(part, answers):
            if not answer.whole:
                sys.exit(f"request {index} without a loss: status {answer.status}, {answer.error or answer.body}")
            texts[index] = answer.text
    return texts


async def run(cluster, daemons, victim, texts, arguments):
    """Streams through all nodes; kills the victim once some of the streams have begun."""
    hosts, killed = [client.place(daemon) for daemon in daemons], asyncio.Event()
    begun = set()

    def on_text(index):
        def note(_):
            begun.add(index)
            if len(begun) >= min(8, arguments.streams // 4 + 1) and not killed.is_set():
                victim.process.kill()
                killed.set()

        return note

    async def one(index):
        host = hosts[index % len(hosts)]
        headers = {"X-Request-Id": f"request-{victim.name}-{index}"}
        more = {"model": MODEL, "temperature": 0.7, "seed": index, "headers": headers}
        answer = await client.complete(host, prompt(index), arguments.tokens, on_text=on_text(index), **more)
        again = False
        if not answer.whole and daemons[index % len(daemons)] is victim:
            again = True
            other = hosts[(index + 1) % len(hosts)]
            for _ in range(60):
                answer = await client.complete(other, prompt(index), arguments.tokens, **more)
                if answer.status not in (429, 503):
                    break
                await asyncio.sleep(0.5)
        return index, again, answer

    answers = await asyncio.gather(*(one(index) for index in range(arguments.streams)))
    wrong = []
    for index, again, answer in answers:
        if not answer.whole or answer.error:
            wrong.append(f"request {index} ended with status {answer.status}, {answer.error or answer.body[:200]} after {len(answer.text)} of {len(texts[index])} bytes")
        elif answer.text != texts[index]:
            wrong.append(f"request {index}{' requested again' if again else ''} has a different text: {answer.text!r} instead of {texts[index]!r}")
    pauses = [max((later - now for now, later in zip(answer.tokens, answer.tokens[1:])), default=0) for _, again, answer in answers if not again]
    print(
        f"{victim.name} killed: {len(answers) - len(wrong)} of {len(answers)} streams have their text, {sum(again for _, again, _ in answers)} requested again, "
        f"longest pause of the others {max(pauses, default=0):.2f} s",
        flush=True,
    )
    return wrong


async def all_victims(cluster, daemons, arguments):
    failed = []
    for index, victim in enumerate(daemons):
        nodes = ["--topology", arguments.topology]
        bramble.generate(daemons, MODEL, "ROMEO:", 2, *nodes)
        survivor = client.place(daemons[(index + 1) % len(daemons)])
        texts = await expected(survivor, arguments)
        failed += [f"{victim.name}: {line}" for line in await run(cluster, daemons, victim, texts, arguments)]
        victim.stop()
        victim.start()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="dp2-tp2")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    with bramble.Cluster(MODELS) as cluster:
        settings = SETTINGS + f"threads = 1\nhttp_queue = {arguments.streams}\n"
        daemons = [cluster.add(f"pi{index + 1}", address, settings=settings) for index, address in enumerate(bramble.loopback(arguments.nodes))]
        failed = asyncio.run(all_victims(cluster, daemons, arguments))
    for line in failed[:20]:
        print(line, file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    bramble.command(main)
