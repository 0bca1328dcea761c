#!/usr/bin/env python3
"""A conversation over a model of recurrent layers: the time to the first token of each turn is that of its new tokens
alone, because the state behind the last answer was saved; with and without requests of others in between.

usage: tests/serve/turns.py [--shape qwen3.5-0.8b] [--format q4_k_m] [--turns 5] [--new 96] [--rounds 5] [--folder DIR]

Compares with a first turn of as many tokens. Exit code 1 if a later turn takes 1.15 times as long, or begins before
the last answer. The model is generated. Nothing else may run on the machine.

cargo build --release --locked --workspace
"""
import argparse
import asyncio
import os
import random
import statistics
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
import client

ANSWER_TOKENS, BOUND = 8, 1.15
# The made-up pieces of a generated vocabulary, `Z0` and so on, follow special tokens, bytes, words and letters.
FIRST_PIECE = 3 + 256 + 10 + 26


def piece(text):
    """The id of a made-up piece; None for another token, whose text may be that of several."""
    return FIRST_PIECE + int(text[1:]) if text.startswith("Z") and text[1:].isdigit() else None


async def ask(host, model, prompt):
    """Seconds to the first token, ids of the answer, and how many tokens of the prompt were cached."""
    more = {"model": model, "temperature": 0, "stream_options": {"include_usage": True}}
    texts = []
    answer = await client.complete(host, prompt, ANSWER_TOKENS, lambda so_far: texts.append(so_far.text), **more)
    if answer.status != 200 or answer.error:
        sys.exit(f"status {answer.status}, {answer.error or answer.body[:200]}")
    parts = [text[len(before):] for before, text in zip(["", *texts], texts)]
    return answer.first_token, [piece(part) for part in parts], answer.usage["prompt_tokens_details"]["cached_tokens"]


async def converse(host, model, chance, arguments, is_disturbed):
    """Seconds to the first token of each turn; None if an answer has a token whose id is unknown."""
    new = lambda: [chance.randrange(FIRST_PIECE, 60_000) for _ in range(arguments.new)]
    times, history = [], []
    for turn in range(arguments.turns):
        # The last token of an answer is computed with the next turn.
        prompt = history + new()[: arguments.new - (1 if turn else 0)]
        seconds, ids, cached = await ask(host, model, prompt)
        if None in ids or len(ids) != ANSWER_TOKENS:
            return None
        # If an answer ends with speculative tokens, only the state before them is saved.
        least, most = len(history) - ANSWER_TOKENS, len(history) - 1
        if turn and not least <= cached <= most:
            sys.exit(f"turn {turn + 1} of {len(prompt)} tokens began behind {cached} tokens instead of {least} to {most}")
        times.append(seconds)
        history = prompt + ids
        if is_disturbed:
            await ask(host, model, new())
    return times


async def measure(host, model, arguments):
    code = 0
    for is_disturbed in (False, True):
        rounds, seed = [], 0
        while len(rounds) < arguments.rounds:
            times = await converse(host, model, random.Random(seed), arguments, is_disturbed)
            seed += 1
            if times:
                rounds.append(times)
            elif seed > 20 * arguments.rounds:
                sys.exit("the model answers with tokens whose ids are unknown")
        first, *later = [statistics.median(turn) for turn in zip(*rounds)]
        ratios = [seconds / first for seconds in later]
        others = "requests of others in between" if is_disturbed else "alone"
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{others}: first turn of {arguments.new} tokens {first * 1e3:.0f} ms, later ones {shown} times that", flush=True)
        code |= max(ratios) > BOUND
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3.5-0.8b")
    parser.add_argument("--format", default="q4_k_m")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=os.path.join(bramble.ROOT, "target", "speed"))
    arguments = parser.parse_args()
    path = bramble.model(arguments.shape, arguments.format, arguments.folder)
    folder, name = os.path.split(path)
    with bramble.Cluster(folder) as cluster:
        daemon = cluster.add("pi1", bramble.loopback(1)[0], settings=bramble.QUIET)
        bramble.generate([daemon], name, "the", 2, "--topology", "tp1", context=2048)
        host = client.place(daemon)
        asyncio.run(client.until_healthy([host]))
        sys.exit(asyncio.run(measure(host, name, arguments)))


if __name__ == "__main__":
    bramble.command(main)
