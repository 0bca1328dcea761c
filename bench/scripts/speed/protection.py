#!/usr/bin/env python3
"""The cost of protected data links: ranks as one-core processes on this machine, with a cluster key and links that are
plain, authenticated and encrypted, alternating. Prints medians of the rounds, and the ratio of each protected rate to
the plain one of the same round.

cargo build --release --locked --workspace && bench/scripts/speed/protection.py [--rounds 15] [--ranks 2] [--chacha] [--json]

Wanted: at most 3 % of decode. As root, the script raises its scheduling priority.
"""
import argparse
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
PROTECTIONS = ("plain", "authenticated", "encrypted")


def measure(daemons, key, model, arguments):
    """Tokens per second of prefill and decode."""

    def run(prompt, tokens):
        context = max(arguments.prompt_tokens, arguments.decode_tokens) + 64
        return bramble.generate(daemons, os.path.basename(model), "a" * prompt, tokens, "--key", key, context=context)["timings"]

    run(32, 8)
    prefill = run(arguments.prompt_tokens, 1)["prefill_tokens_per_second"]
    decode = run(8, arguments.decode_tokens)
    return {"prefill": prefill, "decode": decode["decode_tokens_per_second"], "network": decode["network_fraction"]}


def rounds(arguments):
    model = bramble.model(arguments.shape, arguments.format, FOLDER)
    cores = sorted(os.sched_getaffinity(0))[:2]
    found = {protection: [] for protection in PROTECTIONS}
    with tempfile.TemporaryDirectory() as folder, bramble.Cluster(FOLDER) as cluster:
        key = os.path.join(folder, "cluster.key")
        bramble.console("key", "new", "--key", key)
        addresses, set_ups = bramble.loopback(len(PROTECTIONS) * arguments.ranks), {}
        for protection in PROTECTIONS:
            settings = bramble.QUIET + f'key_file = "{key}"\nhttp = "off"\ndata_links = "{protection}"\n'
            for rank in range(arguments.ranks):
                enter, name = ["taskset", "-c", str(cores[rank % 2])], f"{protection}{rank + 1}"
                daemon = cluster.add(name, addresses.pop(), enter=enter, settings=settings, variant=[bramble.PLAIN])
                set_ups.setdefault(protection, []).append(daemon)
        for number in range(arguments.rounds):
            # Each protection is first in every third round.
            for place in range(len(PROTECTIONS)):
                protection = PROTECTIONS[(number + place) % len(PROTECTIONS)]
                found[protection].append(measure(set_ups[protection], key, model, arguments))
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bramble.favour()
    found, ratios = rounds(arguments), []
    for protection, each in found.items():
        for what, wanted in (("decode", 0.97), ("prefill", 0.9)):
            of_plain = bramble.median([one[what] / plain[what] for one, plain in zip(each, found["plain"])])
            rate = bramble.median([one[what] for one in each])
            ratios.append({"what": f"{what}, {protection} by plain ({rate:.2f} tokens/s)", "ratio": of_plain, "wanted": wanted, "at_least": True})
    bramble.tell(ratios, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
