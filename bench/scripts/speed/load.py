#!/usr/bin/env python3
"""Serving under load: two replicas of one core each compared with one process of two threads, and the TTFT at 80 % of
saturation compared with an idle server.

cargo build --release --locked --workspace && bench/scripts/speed/load.py [--rounds 3] [--only replicas,saturation] [--json]

Saturation is the rate that sixteen concurrent requests reach. At 80 % of it requests arrive at random, and at times
more than sixteen are running: there are twice as many slots, and memory for them. Prints ratios with their targets;
medians of the rounds. Run it on an otherwise idle machine. As root, the script raises its scheduling priority.
"""
import argparse
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
HTTP_PORT = 9980
CONCURRENCY = 16
SLOTS = 2 * CONCURRENCY
KV_BLOCK = 32


class Server:
    """A topology of daemons and the HTTP API of its first node."""

    def __init__(self, daemons, model, arguments):
        host = daemons[0].address.rsplit(":", 1)[0]
        self.url = f"http://{host}:{HTTP_PORT}"
        file = os.path.join(daemons[0].state, "topology.toml")
        slots, blocks = SLOTS // len(daemons), -(-(arguments.prompt_tokens + arguments.tokens) // KV_BLOCK)
        with open(file, "w") as out:
            out.write(f'model = "{model}"\ncontext_length = {slots * blocks * KV_BLOCK}\nslots = {slots}\n')
            for index, daemon in enumerate(daemons):
                out.write(f'[[stage]]\nreplica = {index}\nnodes = ["{daemon.address}"]\n')
        bramble.console("topology", "assign", file, "--yes")

    def load(self, arguments, *more):
        """The single load point of a benchmark."""
        lengths = ["--prompt-tokens", str(arguments.prompt_tokens), "--max-tokens", str(arguments.tokens)]
        seed = str(next(arguments.seeds))
        return bramble.bench("serve", "--url", self.url, *lengths, "--seed", seed, *more, patience=900)["points"][0]

    def saturated(self, arguments):
        return self.load(arguments, "--concurrency", str(CONCURRENCY), "--requests", str(arguments.requests))


def replicas(one, two, arguments):
    alone, both = one.saturated(arguments), two.saturated(arguments)
    return [
        {"what": "goodput of dp2 / of one process with two threads", "ratio": both["tokens_per_second"] / alone["tokens_per_second"], "wanted": 0.92, "at_least": True},
        {"what": "TTFT p95 of dp2 / of dp1", "ratio": both["ttft_ms"]["p95"] / alone["ttft_ms"]["p95"], "wanted": 1.1, "at_least": False},
    ]


def saturation(one, _, arguments):
    unloaded = one.load(arguments, "--concurrency", "1", "--requests", "20")
    rate = one.saturated(arguments)["completed_per_second"]
    loaded = one.load(arguments, "--rate", f"{0.8 * rate:.3f}", "--requests", str(2 * arguments.requests), "--duration", "3600")
    first, idle = loaded["ttft_ms"], unloaded["ttft_ms"]
    print(f"saturation {rate:.2f}/s; TTFT p50, p95, p99 unloaded {idle}, at 80 % {first}", file=sys.stderr)
    return [
        {"what": "TTFT p95 at 80 % of saturation / unloaded", "ratio": first["p95"] / idle["p95"], "wanted": 2.0, "at_least": False},
        {"what": "TTFT p99 at 80 % of saturation / unloaded", "ratio": first["p99"] / idle["p99"], "wanted": 3.0, "at_least": False},
    ]


def measure(cluster, arguments):
    addresses, cores = bramble.loopback(3), sorted(os.sched_getaffinity(0))
    model = os.path.basename(bramble.model(arguments.shape, arguments.format, FOLDER))

    def daemon(index, *cores):
        http = f"{addresses[index].rsplit(':', 1)[0]}:{HTTP_PORT}"
        enter = ["taskset", "-c", ",".join(map(str, cores))]
        return cluster.add(f"pi{index + 1}", addresses[index], enter=enter, settings=bramble.QUIET, more=["--threads", str(len(cores)), "--http", http])

    one = Server([daemon(0, *cores[:2])], model, arguments)
    two = Server([daemon(1, cores[0]), daemon(2, cores[1])], model, arguments)
    found = {}
    for number in range(arguments.rounds):
        for name, part in (("replicas", replicas), ("saturation", saturation)):
            for each in part(one, two, arguments) if name in arguments.only.split(",") else []:
                found.setdefault(each["what"], []).append(each)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return [{**all_of[0], "ratio": bramble.median([each["ratio"] for each in all_of])} for all_of in found.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b", help="shape name of make_model")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64, help="requests of a saturated load")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--only", default="replicas,saturation")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.seeds = iter(range(1, 1 << 16))
    if not bramble.favour():
        print("running without a raised scheduling priority: needs root", file=sys.stderr)
    with bramble.Cluster(FOLDER) as cluster:
        found = measure(cluster, arguments)
    bramble.tell(found, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
