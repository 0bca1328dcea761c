#!/usr/bin/env python3
"""The time to the first token of a long prompt that was computed before: after a restart of all daemons, after other
prompts evicted it from memory, and after a new assignment of the same cut. Its keys and values are read from the disks.

usage: tests/serve/stored.py [--shape tinyllama-1.1b] [--format q4_k_m] [--tokens 4000] [--others 50] [--short]
                             [--folder DIR] [--json]

Two daemons on loopback addresses serve as tp2. The page cache of the stored files is dropped before each reading. Exit
code 1 if a repeated prompt takes more than a tenth of its first time, was in memory, or gets another answer. `--short`:
fewer layers and a shorter prompt. The model is generated, and has an output matrix of its own: with the embedding in its
place, its answers would not depend on keys and values. Nothing else may run on the machine.

cargo build --release --locked --workspace
"""
import glob
import os
import random
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

BLOCK, BOUND, ANSWER_TOKENS, OTHER_TOKENS = 32, 0.10, 8, 120
# The answer is sampled, because the most probable one may repeat a token. It must have so many different tokens.
TEMPERATURE, VARIED_TOKENS = 0.8, 4
SHORT_LAYERS = 8
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def letters(seed, count):
    """A prompt of letters, each of which is a token."""
    chance = random.Random(seed)
    return "".join(chance.choice(LETTERS) for _ in range(count))


class Measured:
    """Two daemons and their topology."""

    def __init__(self, cluster, model, arguments):
        self.cluster, self.model, self.arguments = cluster, model, arguments
        settings = bramble.QUIET + 'kv_store = "on"\nrecover = false\n'
        self.daemons = [cluster.add(f"pi{index + 1}", address, settings=settings) for index, address in enumerate(bramble.loopback(2))]
        self.nodes = ",".join(daemon.address for daemon in self.daemons)

    def assign(self):
        """A topology whose cache holds little more than the long prompt, so that others evict it."""
        file = os.path.join(self.cluster.folder, "topology.toml")
        context = (self.arguments.tokens // BLOCK + 4) * BLOCK
        nodes = ", ".join(f'"{daemon.address}"' for daemon in self.daemons)
        with open(file, "w") as out:
            out.write(f'model = "{self.model}"\ncontext_length = {context}\nslots = 1\n[[stage]]\nnodes = [{nodes}]\n')
        bramble.console("topology", "assign", file, "--yes")

    def unload(self):
        bramble.console("topology", "unload", "--nodes", self.nodes, "--yes")

    def restart(self):
        for daemon in self.daemons:
            daemon.stop()
        for daemon in self.daemons:
            daemon.start()
        self.assign()

    def ask(self, prompt):
        return bramble.generate(self.daemons, self.model, prompt, ANSWER_TOKENS, "--seed", "1", temperature=TEMPERATURE)

    def written(self, tokens):
        """Waits until both nodes have written so many tokens since their start; returns the seconds."""
        begun = time.monotonic()
        while True:
            stores = [node["store"] for node in bramble.console("kv", "--nodes", self.nodes)["nodes"]]
            if min(store["tokens_written"] for store in stores) >= tokens:
                return time.monotonic() - begun
            if time.monotonic() > begun + bramble.PATIENCE:
                sys.exit(f"only {[store['tokens_written'] for store in stores]} of {tokens} tokens were written")
            time.sleep(0.05)

    def forget_pages(self):
        """Has the stored files read from the disk."""
        for path in glob.glob(os.path.join(self.cluster.folder, "*", "kv", "*")):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(arguments, path):
    folder, model = os.path.split(path)
    prompt, rows, missed = letters(0, arguments.tokens - 1), [], []
    with bramble.Cluster(folder) as cluster:
        measured = Measured(cluster, model, arguments)
        measured.assign()
        first = measured.ask(prompt)
        if len({*first["token_ids"]}) < VARIED_TOKENS:
            sys.exit(f"the answer {first['token_ids']} is too monotonous to compare others with")
        tokens = len(first["prompt_token_ids"])
        seconds = measured.written((tokens - 1) // BLOCK * BLOCK)

        def again(what):
            measured.forget_pages()
            found = measured.ask(prompt)
            times = found["timings"]
            ratio = times["ttft_ms"] / first["timings"]["ttft_ms"]
            in_memory = times["cached_tokens"] - times["stored_tokens"]
            rows.append({"what": what, "ttft_ms": times["ttft_ms"], "ratio": ratio, "in_memory": in_memory, "stored": times["stored_tokens"]})
            if ratio > BOUND:
                missed.append(f"{what}: {ratio:.3f} of the first time to the first token, at most {BOUND} wanted")
            if in_memory:
                missed.append(f"{what}: {in_memory} tokens were in memory")
            if found["token_ids"] != first["token_ids"]:
                missed.append(f"{what}: another answer")

        measured.restart()
        again("after a restart of all daemons")
        for seed in range(1, arguments.others + 1):
            measured.ask(letters(seed, OTHER_TOKENS - 1))
        again(f"after {arguments.others} other prompts")
        measured.unload()
        measured.assign()
        again("after a new assignment")
    return {"model": model, "prompt_tokens": tokens, "first_ttft_ms": first["timings"]["ttft_ms"],
            "written_after_s": seconds, "rows": rows}, missed


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--shape", default="tinyllama-1.1b")
    parser.add_argument("--format", default="q4_k_m")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--others", type=int, default=50)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--folder", default=os.path.join(bramble.ROOT, "target", "speed"))
    arguments = parser.parse_args()
    name, options = None, []
    if arguments.short:
        arguments.tokens, arguments.others = 1000, 12
        name, options = f"{arguments.shape}-{arguments.format}-{SHORT_LAYERS}-layers", ["--layers", str(SHORT_LAYERS)]
    found, missed = measure(arguments, bramble.model(arguments.shape, arguments.format, arguments.folder, name=name, options=options))
    if not arguments.json:
        print(f"{found['model']}, {found['prompt_tokens']} prompt tokens: first token after {found['first_ttft_ms']:.0f} ms; "
              f"all written {found['written_after_s']:.1f} s after the answer")
        for row in found["rows"]:
            print(f"  {row['what']:32} {row['ttft_ms']:8.0f} ms, {row['ratio']:.3f} of the first; {row['stored']} tokens read, {row['in_memory']} in memory")
    bramble.finish(found, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
