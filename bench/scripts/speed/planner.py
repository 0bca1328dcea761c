#!/usr/bin/env python3
"""Compares the predictions of `console topology plan` with the same daemons' measurements: two one-core daemons, every layout of
one replica. The two share one memory, which two machines do not: where both read weights at once (decode of tp2) the
prediction is that of two machines.

cargo build --release --locked --workspace && bench/scripts/speed/planner.py [--formats q4_0,q8_0] [--rounds 3] [--json]
"""
import argparse
import json
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")


def measure(form, arguments):
    model = bramble.model(arguments.shape, form, FOLDER)
    name, context = os.path.basename(model), arguments.prompt_tokens + 128
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("needs two cores; this process may use only one")
    found = []
    with bramble.Cluster(FOLDER) as cluster:
        addresses = bramble.loopback(2)
        for index, core in enumerate(cores):
            cluster.add(f"pi{index + 1}", addresses[index], enter=["taskset", "-c", str(core)], settings=bramble.QUIET, variant=[bramble.PLAIN])
        command = ["topology", "plan", ",".join(addresses), "--model", model, "--context", str(context), "--prompt", str(arguments.prompt_tokens)]
        link = ["--alpha-us", str(arguments.alpha_us), "--bandwidth-mbit", str(arguments.bandwidth_mbit)]
        plan = bramble.console(*command, *link, "--all")
        for candidate in plan["ranked"]:
            topology = candidate["topology"]
            if topology.startswith("dp"):
                continue
            daemons = cluster.daemons[: candidate["nodes"]]

            def run(prompt, tokens):
                return bramble.generate(daemons, name, bramble.letters(prompt), tokens, "--topology", topology, context=context)["timings"]

            run(32, 8)
            runs = [run(arguments.prompt_tokens, 32) for _ in range(arguments.rounds)]
            for what in ("ttft_ms", "tpot_ms"):
                real = bramble.median([one[what] for one in runs])
                found.append({"model": name, "topology": topology, "what": what, "predicted": candidate[what], "measured": real})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--formats", default="q4_0,q8_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--alpha-us", type=float, default=10, help="latency of loopback, as reported by bramble-bench collectives")
    parser.add_argument("--bandwidth-mbit", type=float, default=20000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bramble.favour()
    found = [row for form in arguments.formats.split(",") for row in measure(form, arguments)]
    error = bramble.median([abs(row["predicted"] / row["measured"] - 1) for row in found])
    if arguments.json:
        print(json.dumps({"rows": found, "median_error": error}))
        return
    for row in found:
        ratio = row["predicted"] / row["measured"] - 1
        print(f"{row['model']:28} {row['topology']:8} {row['what']}  predicted {row['predicted']:8.1f}  measured {row['measured']:8.1f}  {ratio:+.0%}")
    print(f"median error {error:.0%}, wanted at most 15%")


if __name__ == "__main__":
    bramble.command(main)
