#!/usr/bin/env python3
"""This build against an earlier one: prefill and decode of one node, one pair of runs after another.

git worktree add ../before COMMIT && (cd ../before && cargo build --release --locked -p bramble-daemon)
cargo build --release --locked -p bramble-daemon
bench/scripts/speed/against.py ../before/target/release/brambled MODEL.gguf [--pairs 30] [--json]

Each pair measures both builds with `brambled bench node`, in alternating order. For every rate, the ratio of times
(new / old) of each pair gives a geometric mean with its 95 % interval. Wanted: the lower end of no interval above 1.01.
Run it on an otherwise idle machine; as root, the script raises its scheduling priority.
"""
import json
import math
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

NEW = os.path.join(bramble.ROOT, "target", "release", "brambled")
# The contexts of the decode rates and the length of the prompt, in tokens.
CONTEXTS, PROMPT = (0, 512), 128
WANTED = 1.01
# Two-sided 95 % quantile of the normal distribution: with 30 pairs, Student's is 2.05.
SIGMAS = 2.05


def measure(program, arguments):
    """Nanoseconds per token by rate."""
    line = [program, "bench", "node", "--model", arguments.model, "--read-mib", "16", "--repeats", "3", "--prefill", str(PROMPT), "--context", ",".join(map(str, CONTEXTS)), "--json"]
    found = subprocess.run(line, capture_output=True, text=True)
    if found.returncode:
        raise bramble.Failed(f"{' '.join(line)}: {found.stderr.strip()}")
    rows = json.loads(found.stdout)
    rates = {f"prefill of {row['tokens']}": row["tokens_per_second"] for row in rows["prefill"]}
    rates.update({f"decode at context {row['context']}": row["tokens_per_second"] for row in rows["decode"]})
    return rates


def ratio(pairs):
    """The geometric mean of the times of the new build in units of the old one's, and its 95 % interval."""
    logs = [math.log(old / new) for old, new in pairs]
    mean = sum(logs) / len(logs)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / max(1, len(logs) - 1) / len(logs))
    return {"ratio": math.exp(mean), "from": math.exp(mean - SIGMAS * deviation), "to": math.exp(mean + SIGMAS * deviation)}


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("old", metavar="BRAMBLED", help="the earlier brambled")
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args()
    bramble.favour()
    found = {}
    for number in range(arguments.pairs):
        order = (arguments.old, NEW) if number % 2 else (NEW, arguments.old)
        rates = {program: measure(program, arguments) for program in order}
        for name, rate in rates[NEW].items():
            found.setdefault(name, []).append((rates[arguments.old][name], rate))
        print(f"pair {number + 1} of {arguments.pairs}", file=sys.stderr)
    rows = {name: {**ratio(pairs), "old": bramble.median([old for old, _ in pairs]), "new": bramble.median([new for _, new in pairs])} for name, pairs in found.items()}
    if not arguments.json:
        for name, row in rows.items():
            print(f"{name}: {row['old']:.1f} to {row['new']:.1f} tok/s (medians); time {row['ratio']:.4f} of before, 95 % interval {row['from']:.4f} to {row['to']:.4f}")
    missed = [f"{name}: slower by {row['from'] - 1:.1%} at least" for name, row in rows.items() if row["from"] > WANTED]
    bramble.finish({"pairs": arguments.pairs, "rows": rows}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
