#!/usr/bin/env python3
"""Serving with one daemon: 16 concurrent requests compared with one at a time, the time per token of a running answer
during a long prefill, the TTFT of a second request with the same prefix, and speculative decoding on and off on a fixed
prompt set.

cargo build --release --locked --workspace && bench/scripts/speed/serving.py [--rounds 3] [--only at-once,beside,prefix,drafts]
[--json]

Prints ratios with their targets; medians of the rounds. Run it on an otherwise idle machine. As root, the script raises
its scheduling priority.
"""
import argparse
import json
import os
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
HTTP_PORT = 9980


def host(address):
    return address.rsplit(":", 1)[0]


def count(answer):
    return answer["usage"]["completion_tokens"]


class Server:
    """A daemon with a model in sixteen slots, and access to it over HTTP."""

    def __init__(self, daemon, model, context):
        self.url = f"http://{host(daemon.address)}:{HTTP_PORT}/v1/completions"
        file = os.path.join(daemon.state, "topology.toml")
        with open(file, "w") as out:
            out.write(f'model = "{model}"\ncontext_length = {context}\nslots = 16\n[[stage]]\nnodes = ["{daemon.address}"]\n')
        bramble.console("topology", "assign", file, "--yes")

    def run(self, prompt, tokens):
        """The most probable continuation, one token per step; its object includes `timings`."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "speculative.n_max": 0}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=bramble.PATIENCE) as answer:
            return json.load(answer)

    def at_once(self, prompts, tokens):
        """Tokens per second of all prompts together."""
        begin = time.monotonic()
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda prompt: self.run(prompt, tokens), prompts))
        return sum(map(count, answers)) / (time.monotonic() - begin), answers


def own(number, count):
    """A prompt that shares no prefix with any other."""
    letters = bramble.letters(26)
    head = "".join(letters[(number // 26**place) % 26] for place in range(4))
    return head + letters[number % 26 :] * (count // 13 + 2)


def cut(number, count):
    return own(number, count)[:count]


def at_once(server, numbers, arguments):
    """Sixteen at once over one at a time, both with one token per step. Prompts are short, because they cost each
    request the same."""
    tokens = 2 * arguments.tokens
    prompts = [cut(next(numbers), 8) for _ in range(4)]
    begin = time.monotonic()
    written = sum(count(server.run(prompt, tokens)) for prompt in prompts)
    alone = written / (time.monotonic() - begin)
    together, _ = server.at_once([cut(next(numbers), 8) for _ in range(16)], tokens)
    return {"what": "tokens/s of 16 at once / of one at a time", "ratio": together / alone, "wanted": 3.0, "at_least": True}


def beside(server, numbers, arguments):
    """The time per token of a running answer during the prefill of 2000 tokens, over the time without."""
    alone = server.run(cut(next(numbers), 16), 3 * arguments.tokens)["timings"]["predicted_per_token_ms"]
    long = cut(next(numbers), 2000)
    with ThreadPoolExecutor(2) as pool:
        prefill = pool.submit(server.run, long, 1)
        time.sleep(0.3)
        # Must end before the long prefill, so that all of its tokens fall into it.
        answer = pool.submit(server.run, cut(next(numbers), 4), arguments.tokens).result()
        is_beside = not prefill.done()
        prefill.result()
    if not is_beside:
        print("the long prefill ended before the answer", file=sys.stderr)
    return {"what": "time per token during a 2000-token prefill / without", "ratio": answer["timings"]["predicted_per_token_ms"] / alone, "wanted": 2.0, "at_least": False}


def prefix(server, numbers, _):
    """The TTFT of a second request with the same 1000 tokens, over that of the first."""
    shared = cut(next(numbers), 1000)
    first, second = (server.run(shared + cut(next(numbers), 8), 1)["timings"]["trace"]["t_first_token"] for _ in range(2))
    return {"what": "TTFT with a shared 1000-token prefix / of the first", "ratio": second / first, "wanted": 0.10, "at_least": False}


def drafts(server):
    """Tokens per second with speculative decoding over those without, alternating on one daemon: `bramble-bench
    drafts`."""
    found = bramble.bench("drafts", "--url", server.url.rsplit("/v1", 1)[0], "--repeats", "3", is_good=(0, 1))["prompts"]
    repetitive = min(one["ratio"] for one in found if one["is_repetitive"])
    others = min(one["ratio"] for one in found if not one["is_repetitive"])
    what = "tokens/s with speculative decoding / without, "
    return [
        {"what": what + "a repetitive text", "ratio": repetitive, "wanted": 1.9, "at_least": True},
        {"what": what + "the worst of others", "ratio": others, "wanted": 0.95, "at_least": True},
    ]


def measure(cluster, arguments):
    """All rounds: the results of each comparison."""
    parts, addresses = arguments.only.split(","), bramble.loopback(1)
    model = os.path.basename(bramble.model(arguments.shape, arguments.format, FOLDER))

    http = f"{host(addresses[0])}:{HTTP_PORT}"
    serving = Server(cluster.add("pi1", addresses[0], settings=bramble.QUIET, more=["--http", http]), model, 8192)
    numbers, found = iter(range(1, 1 << 16)), {}
    # Touches every page and lets the daemon learn its step latencies.
    serving.run(cut(0, 200), 40)
    for number in range(arguments.rounds):
        each = []
        for name, part in (("at-once", at_once), ("beside", beside), ("prefix", prefix)):
            if name in parts:
                each.append(part(serving, numbers, arguments))
        if "drafts" in parts:
            each.extend(drafts(serving))
        for one in each:
            found.setdefault(one["what"], []).append(one)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return [{**all_of[0], "ratio": bramble.median([one["ratio"] for one in all_of])} for all_of in found.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--only", default="at-once,beside,prefix,drafts")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not bramble.favour():
        print("running without a raised scheduling priority: needs root", file=sys.stderr)
    with bramble.Cluster(FOLDER) as cluster:
        found = measure(cluster, arguments)
    bramble.tell(found, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
