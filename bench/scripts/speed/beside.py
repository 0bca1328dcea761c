#!/usr/bin/env python3
"""Running answers beside text work: the gaps between the tokens of 31 streams with and without requests whose text is
expensive: a chat prompt of 2 MiB, a deep JSON schema, and a chat with 64 tools.

cargo build --release --locked --workspace && bench/scripts/speed/beside.py [--seconds 10] [--rounds 5] [--nodes 1]
[--times 8] [--only prompt,schema,tools] [--json]

Windows of --seconds without and with each kind of request take turns, --rounds times. A kind that the model answers is
compared with a plain request that has as many prompt and answer tokens, so that only the text work differs; one that it
refuses is compared with no request. Wanted: p99 of the gaps at most 1.02 times that without. The model is the demo
model with its layers repeated --times times and a longer context. Run it on an otherwise idle machine.
"""
import asyncio
import os
import random
import struct
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client
import gguf

DEMO = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
STREAMS, SLOTS, CONTEXT = 31, 32, 32768
PROMPT_BYTES, DEPTH, TOOLS = (2 << 20) - 4096, 45, 64
# Tokens of an answer of the streams and of the other requests, and the pause after each of those in seconds.
STREAM_TOKENS, ANSWER_TOKENS, PAUSE = 600, 4, 0.2
WANTED = 1.02
WORDS = "now is the winter of our discontent made glorious summer by this sun of York".split()


def chat(content, **more):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": ANSWER_TOKENS, "temperature": 0, **more}


def words(count):
    """A text that no earlier request has, so that no prefix is cached."""
    return " ".join(random.choice(WORDS) for _ in range(count))


def schema():
    """A schema that nests objects as deep as it may, different each time, so that no result is cached."""
    found = {"type": "integer", "minimum": random.randrange(1 << 30)}
    for level in range(DEPTH):
        found = {"type": "object", "properties": {f"p{level}": found}, "required": [f"p{level}"], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "deep", "schema": found}}


def tools():
    parameters = {"type": "object", "properties": {"place": {"type": "string"}, "day": {"type": "integer"}}, "required": ["place"]}
    return [{"type": "function", "function": {"name": f"f{index}_{random.randrange(1 << 30)}", "description": words(12), "parameters": parameters}} for index in range(TOOLS)]


# The expensive requests.
KINDS = {
    "prompt": lambda: chat(words(PROMPT_BYTES // 4)[:PROMPT_BYTES]),
    "schema": lambda: chat(words(20), response_format=schema()),
    "tools": lambda: chat(words(20), tools=tools()),
}
TEXTS = {"prompt": "a chat prompt of 2 MiB", "schema": "a deep JSON schema", "tools": f"{TOOLS} tools"}


class Streams:
    """Answers that run all the time, and the gaps between their tokens as (time of the later token, gap)."""

    def __init__(self, host):
        self.host, self.gaps, self.failed = host, [], []

    async def run(self):
        while True:
            latest = None

            def on_text(_):
                nonlocal latest
                now = time.monotonic()
                if latest is not None:
                    self.gaps.append((now, now - latest))
                latest = now

            more = {"temperature": 1, "seed": random.randrange(1 << 30), "ignore_eos": True, "speculative.n_max": 0}
            answer = await client.complete(self.host, random.choice(WORDS), STREAM_TOKENS, on_text, **more)
            if answer.error or not answer.whole:
                self.failed.append(answer.error or f"status {answer.status}: {answer.body[:200]}")
                await asyncio.sleep(0.2)

    def within(self, windows):
        return [gap for end, gap in self.gaps if any(begin + gap <= end <= until for begin, until in windows)]


async def window(host, seconds, request):
    """Sends requests one after another for `seconds`; returns begin and end, and how many were sent."""
    begin, count = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        if request:
            path, body = request()
            await client.ask(host, "POST", path, body)
            count += 1
        await asyncio.sleep(PAUSE)
    return (begin, time.monotonic()), count


async def plain_like(host, kind):
    """A plain request with as many tokens as those of a kind, or None if the server refuses that kind."""
    answer = await client.ask(host, "POST", *KINDS[kind]())
    if answer.status != 200:
        return None, answer.json()["error"]["message"]
    count = answer.json()["usage"]["prompt_tokens"]
    body = lambda: {"prompt": words(count)[: 4 * count], "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
    return (lambda: ("/v1/completions", body())), None


async def measure(host, arguments):
    streams = Streams(host)
    tasks = [asyncio.create_task(streams.run()) for _ in range(STREAMS)]
    await asyncio.sleep(3)
    rows = []
    for kind in arguments.only.split(","):
        plain, refused = await plain_like(host, kind)
        without, beside, sent = [], [], 0
        for number in range(2 * arguments.rounds):
            # ABBA: neither side is always first.
            is_beside = number % 4 in (1, 2)
            span, count = await window(host, arguments.seconds, KINDS[kind] if is_beside else plain)
            (beside if is_beside else without).append(span)
            sent += count if is_beside else 0
        sides = {"without": streams.within(without), "beside": streams.within(beside)}
        row = {"kind": kind, "requests": sent, "refused": refused}
        for name, gaps in sides.items():
            row[name] = {"gaps": len(gaps), **{f"p{share}_ms": 1e3 * bramble.quantile(gaps, share / 100) for share in (50, 99)}}
        row["p50_ratio"], row["p99_ratio"] = (row["beside"][key] / row["without"][key] for key in ("p50_ms", "p99_ms"))
        rows.append(row)
    for task in tasks:
        task.cancel()
    return {"streams": STREAMS, "failed": streams.failed, "rows": rows}


def serve(cluster, arguments):
    """Starts the daemons with the model; returns the head's host."""
    for index, address in enumerate(bramble.loopback(arguments.nodes)):
        cluster.add(f"pi{index + 1}", address, settings=bramble.QUIET + "exclude_slow_ms = 0\nmdns = false\n")
    file = os.path.join(cluster.folder, "topology.toml")
    nodes = ", ".join(f'"{daemon.address}"' for daemon in cluster.daemons)
    with open(file, "w") as out:
        out.write(f'model = "deep.gguf"\ncontext_length = {CONTEXT}\nslots = {SLOTS}\n[[stage]]\nnodes = [{nodes}]\n')
    bramble.console("topology", "assign", file, "--yes")
    return client.place(cluster.daemons[0])


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--only", default=",".join(KINDS))
    arguments = parser.parse_args()
    bramble.favour()
    models = os.path.join(bramble.ROOT, "target", "beside")
    os.makedirs(models, exist_ok=True)
    demo = gguf.File(DEMO)
    longer = {demo.key("context_length"): (gguf.UINT32, struct.pack("<I", CONTEXT))}
    demo.write(os.path.join(models, "deep.gguf"), longer, arguments.times)
    with bramble.Cluster(models) as cluster:
        host = serve(cluster, arguments)
        asyncio.run(client.until_healthy([host]))
        found = asyncio.run(measure(host, arguments))
    missed = [f"a stream failed: {reason}" for reason in found["failed"][:3]]
    for row in found["rows"]:
        what = TEXTS[row["kind"]]
        if row["p99_ratio"] > WANTED:
            missed.append(f"p99 beside {what}: {row['p99_ratio']:.3f} times that without, wanted at most {WANTED}")
        if not arguments.json:
            sides = ", ".join(f"{name} p50 {row[name]['p50_ms']:.2f} ms, p99 {row[name]['p99_ms']:.2f} ms" for name in ("without", "beside"))
            print(f"{what}: p50 {row['p50_ratio']:.3f}, p99 {row['p99_ratio']:.3f} ({sides}; {row['requests']} requests{', refused: ' + row['refused'] if row['refused'] else ''})")
    bramble.finish(found, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
