#!/usr/bin/env python3
"""Running answers beside text work: the gaps between the tokens of 31 streams with and without requests whose text is
expensive: a chat prompt of 2 MiB, a deep JSON schema, and a chat with 64 tools.

cargo build --release --locked --workspace && bench/scripts/speed/beside.py [--seconds 10] [--rounds 5] [--nodes 1]
[--times 8] [--only prompt,schema,tools] [--json]

Windows of --seconds without and with each kind of request take turns, --rounds times. A kind that the model answers is
compared with a plain request that has as many prompt and answer tokens, so that only the text work differs; one that it
refuses is compared with no request. A client's work is not the server's: the daemons have half of the cores, the
clients the others, and the sender is a process of its own that makes its requests before it sends the first. Wanted: p99
of the gaps at most 1.02 times that without. The model is the demo model with its layers repeated --times times and a
longer context. Run it on an otherwise idle machine with two cores or more.
"""
import asyncio
import json
import multiprocessing
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
# Different requests of a kind, so that none is answered from a cache of recent work.
DIFFERENT = {"prompt": 24}
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

    async def run(self, first_tokens):
        """The first answer has `first_tokens`, so that the streams are at different places of their answers: a step is
        slower the longer they are."""
        tokens = first_tokens
        while True:
            latest = None

            def on_text(_):
                nonlocal latest
                now = time.monotonic()
                if latest is not None:
                    self.gaps.append((now, now - latest))
                latest = now

            more = {"temperature": 1, "seed": random.randrange(1 << 30), "ignore_eos": True, "speculative.n_max": 0}
            answer = await client.complete(self.host, random.choice(WORDS), tokens, on_text, **more)
            tokens = STREAM_TOKENS
            if answer.error or not answer.whole:
                self.failed.append(answer.error or f"status {answer.status}: {answer.body[:200]}")
                await asyncio.sleep(0.2)

    def within(self, windows):
        return [gap for end, gap in self.gaps if any(begin + gap <= end <= until for begin, until in windows)]


def plain(tokens):
    """A plain request with this many prompt tokens, and as many answer tokens as the others."""
    return "/v1/completions", {"prompt": words(tokens)[: 4 * tokens], "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}


def send(host, pipe):
    """The sender's process: for each (seconds, kind or tokens) from the pipe, sends such requests one after another;
    answers with the window's begin and end, and the number of requests."""
    made = {}
    while order := pipe.recv():
        seconds, kind = order
        if kind is not None and kind not in made:
            requests = (plain(kind) if isinstance(kind, int) else KINDS[kind]() for _ in range(DIFFERENT.get(kind, 200)))
            made[kind] = [(path, json.dumps(body).encode()) for path, body in requests]
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + seconds:
            if kind is not None:
                path, body = made[kind][0]
                made[kind].append(made[kind].pop(0))
                asyncio.run(client.ask(host, "POST", path, body))
                count += 1
            time.sleep(PAUSE)
        pipe.send(((begin, time.monotonic()), count))


async def tokens_of(host, kind):
    """The number of prompt tokens of a kind of request, or None and the message if the server refuses it."""
    answer = await client.ask(host, "POST", *KINDS[kind]())
    if answer.status != 200:
        return None, answer.json()["error"]["message"]
    return answer.json()["usage"]["prompt_tokens"], None


async def measure(host, arguments):
    streams, (orders, pipe) = Streams(host), multiprocessing.Pipe()
    sender = multiprocessing.get_context("spawn").Process(target=send, args=(host, pipe), daemon=True)
    sender.start()

    async def window(seconds, kind):
        orders.send((seconds, kind))
        return await asyncio.to_thread(orders.recv)

    kinds, refusals = arguments.only.split(","), {}
    for kind in kinds:
        refusals[kind] = await tokens_of(host, kind)
        # The requests are made now.
        for side in (kind, refusals[kind][0]):
            await window(0, side)
    tasks = [asyncio.create_task(streams.run(STREAM_TOKENS * number // STREAMS)) for number in range(1, STREAMS + 1)]
    # Until the first answers have ended, the streams are shorter than later.
    await asyncio.sleep(arguments.settle)
    rows = []
    for kind in kinds:
        like, refused = refusals[kind]
        without, beside, sent = [], [], 0
        for number in range(2 * arguments.rounds):
            # ABBA: neither side is always first.
            is_beside = number % 4 in (1, 2)
            span, count = await window(arguments.seconds, kind if is_beside else like)
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
    orders.send(None)
    return {"streams": STREAMS, "failed": streams.failed, "rows": rows}


def serve(cluster, arguments):
    """Starts the daemons with the model; returns the head's host."""
    cores = sorted(os.sched_getaffinity(0))
    own, theirs = cores[: len(cores) // 2], cores[len(cores) // 2 :]
    os.sched_setaffinity(0, own)
    enter = ["taskset", "-c", ",".join(map(str, theirs))]
    for index, address in enumerate(bramble.loopback(arguments.nodes)):
        cluster.add(f"pi{index + 1}", address, enter=enter, settings=bramble.QUIET + "exclude_slow_ms = 0\nmdns = false\n")
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
    parser.add_argument("--settle", type=float, default=15, help="seconds before the first window (default: 15)")
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
