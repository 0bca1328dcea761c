#!/usr/bin/env python3
"""Compares brambled with distributed-llama on this machine: the same shape in 4 bits (Q4_0 and q40), ranks with one
thread on one core each, over loopback, alternating; prints medians of the rounds and ratios with their targets. With
four ranks, two share a core.

cargo build --release --locked --workspace && bench/scripts/peers/distributed_llama.py --dllama PROGRAM [--ranks 1,2,4]
[--rounds 5] [--json]

PROGRAM is distributed-llama's `dllama`, built for this machine according to its README. Models with random weights are
made below target/peers, also in its format. Its speeds are those that it prints; they exclude sampling and tokenising,
ours include them. As root, the script raises its scheduling priority.
"""
import argparse
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
# TinyLlama-1.1B: layers, embedding, feed-forward, heads, KV heads, vocabulary.
LAYERS, EMBEDDING, FEED_FORWARD, HEADS, HEADS_KV, VOCABULARY = 22, 2048, 5632, 32, 4, 32000
CONTEXT = 2048
MODEL_MAGIC, TOKENIZER_MAGIC = 0xA00ABCD, 0x567124
LLAMA, SILU, Q40 = 0xABCD00, 1, 2
# Values of the header by key.
MODEL_HEADER = {
    0: 1, 1: LLAMA, 2: EMBEDDING, 3: FEED_FORWARD, 4: LAYERS, 5: HEADS, 6: HEADS_KV, 7: 0, 8: 0, 9: VOCABULARY, 10: CONTEXT, 11: SILU,
    12: 10000, 13: Q40,
}
# Target ratios by number of ranks.
WANTED = {1: {"decode": 3, "prefill": 2}, 2: {"decode": 3, "prefill": 2}}
SECONDS_MAX = 600


def header(magic, values):
    """A header of keys and values, with which both of its file formats begin."""
    pairs = b"".join(struct.pack("<ii", key, value) for key, value in values.items())
    return struct.pack("<ii", magic, 8 + len(pairs)) + pairs


class Weights:
    """Random tensor bytes: slices of one pool, which is much faster to make and equally expensive to compute with."""

    POOL = 1 << 16

    def __init__(self):
        source = random.Random(1)
        scale = EMBEDDING**-0.5 / 4.6
        block = lambda: struct.pack("<e", scale * source.uniform(0.5, 1.5)) + source.randbytes(16)
        self.source, self.blocks = source, b"".join(block() for _ in range(self.POOL))
        self.floats = struct.pack(f"<{self.POOL}f", *(source.gauss(0, 1) for _ in range(self.POOL)))

    def write(self, file, pool, bytes, unit):
        while bytes:
            begin = self.source.randrange(self.POOL // 2) * unit
            part = pool[begin : begin + bytes]
            file.write(part)
            bytes -= len(part)

    def q40(self, file, rows, columns):
        self.write(file, self.blocks, rows * columns // 32 * 18, 18)

    def f32(self, file, values):
        self.write(file, self.floats, values * 4, 4)


def write_model(path):
    weights, kv = Weights(), EMBEDDING // HEADS * HEADS_KV
    ones = struct.pack("<f", 1.0) * EMBEDDING
    with open(path, "wb") as file:
        file.write(header(MODEL_MAGIC, MODEL_HEADER))
        weights.f32(file, VOCABULARY * EMBEDDING)
        for _ in range(LAYERS):
            for rows, columns in ((EMBEDDING, EMBEDDING), (kv, EMBEDDING), (kv, EMBEDDING), (EMBEDDING, EMBEDDING)):
                weights.q40(file, rows, columns)
            for rows, columns in ((FEED_FORWARD, EMBEDDING), (EMBEDDING, FEED_FORWARD), (FEED_FORWARD, EMBEDDING)):
                weights.q40(file, rows, columns)
            file.write(ones * 2)
        file.write(ones)
        weights.q40(file, VOCABULARY, EMBEDDING)


def write_tokenizer(path):
    """Writes a vocabulary of letters, pieces that no text contains, and two special tokens at the end, so that every
    letter of a prompt is one token."""
    letters = [chr(ord("a") + number) for number in range(26)]
    pieces = letters + [f"Z{number}" for number in range(VOCABULARY - 2 - len(letters))] + ["<s>", "</s>"]
    start, end = VOCABULARY - 2, VOCABULARY - 1
    # Version, number of tokens, longest token, BOS, EOS ids, and whether a text begins with BOS.
    values = {0: 1, 1: VOCABULARY, 2: max(map(len, pieces)), 3: start, 9: 1, 10: 1}
    with open(path, "wb") as file:
        file.write(header(TOKENIZER_MAGIC, values) + struct.pack("<i", end))
        for piece in pieces:
            file.write(struct.pack("<fI", 0.0, len(piece)) + piece.encode())


def made(name, write):
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        print(f"making {name}", file=sys.stderr)
        write(path + ".part")
        os.rename(path + ".part", path)
    return path


def listens(port):
    with open("/proc/net/tcp") as lines:
        return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in map(str.split, lines))


class Peer:
    """distributed-llama and its files."""

    def __init__(self, program):
        os.makedirs(FOLDER, exist_ok=True)
        self.program = program
        self.model = made("tinyllama-1.1b-q40.m", write_model)
        self.tokenizer = made("letters-32000.t", write_tokenizer)

    def worker(self, core):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = ["taskset", "-c", str(core), self.program, "worker", "--host", "127.0.0.1", "--port", str(port), "--nthreads", "1"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return process, port

    def measure(self, ranks, cores, arguments):
        """Its printed speeds, in tokens per second."""
        workers = [self.worker(cores[rank % len(cores)]) for rank in range(1, ranks)]
        try:
            for process, port in workers:
                deadline = time.monotonic() + 30
                while not listens(port):
                    if process.poll() is not None or time.monotonic() > deadline:
                        sys.exit(f"a worker of {self.program} does not listen on port {port}")
                    time.sleep(0.02)
            command = ["taskset", "-c", str(cores[0]), self.program, "inference", "--model", self.model, "--tokenizer", self.tokenizer]
            # BOS is an additional token.
            steps = arguments.prompt_tokens + arguments.decode_tokens
            command += ["--buffer-float-type", "q80", "--nthreads", "1", "--temperature", "0", "--max-seq-len", "1024"]
            command += ["--prompt", "a" * arguments.prompt_tokens, "--steps", str(steps)]
            if workers:
                command += ["--workers", *(f"127.0.0.1:{port}" for _, port in workers)]
            run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS_MAX)
        finally:
            for process, _ in workers:
                process.kill()
                process.wait()
        found = re.findall(r"nTokens: (\d+)\s+tokens/s: ([\d.]+)", run.stdout)
        if run.returncode or len(found) != 2 or int(found[0][0]) != arguments.prompt_tokens:
            sys.exit(f"{self.program} ended with {run.returncode}: {run.stdout[-500:]}{run.stderr[-500:]}")
        return {"prefill": float(found[0][1]), "decode": float(found[1][1])}


def ours(daemons, model, arguments):
    """Measures our daemons in the same way."""

    def run(prompt, tokens):
        return bramble.generate(daemons, os.path.basename(model), "a" * prompt, tokens, context=1024)

    run(32, 8)
    answer = run(arguments.prompt_tokens, arguments.decode_tokens)
    if len(answer["token_ids"]) < arguments.decode_tokens // 2:
        sys.exit(f"the text ended after {len(answer['token_ids'])} of {arguments.decode_tokens} tokens")
    return {"prefill": answer["timings"]["prefill_tokens_per_second"], "decode": answer["timings"]["decode_tokens_per_second"]}


def measure(peer, model, counts, cores, arguments):
    """All rounds: by number of ranks, the speeds of both programs in each round."""
    found = {count: [] for count in counts}
    settings = bramble.QUIET
    with bramble.Cluster(FOLDER) as cluster:
        for index, address in enumerate(bramble.loopback(max(counts))):
            cluster.add(f"pi{index + 1}", address, enter=["taskset", "-c", str(cores[index % len(cores)])], settings=settings, variant=[bramble.PLAIN])
        for number in range(arguments.rounds):
            for count in counts:
                theirs = peer.measure(count, cores, arguments)
                found[count].append({"ours": ours(cluster.daemons[:count], model, arguments), "theirs": theirs})
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return found


def ratio(what, numerators, denominators, wanted):
    each = [one[what] / other[what] for one, other in zip(numerators, denominators)]
    return {"ratio": bramble.median(each), "least": min(each), "most": max(each), "wanted": wanted}


def report(found):
    """Medians and ratios of all measurements."""
    rows = []
    of = lambda count, whose: [one[whose] for one in found[count]]
    for count in found:
        for what in ("prefill", "decode"):
            medians = {whose: bramble.median([one[what] for one in of(count, whose)]) for whose in ("ours", "theirs")}
            compared = ratio(what, of(count, "ours"), of(count, "theirs"), WANTED.get(count, {}).get(what))
            rows.append({"ranks": count, "what": what, **medians, **compared})
    if 2 in found and 4 in found:
        for whose, wanted in (("ours", 0.8), ("theirs", None)):
            rows.append({"what": f"decode of {whose} with 4 ranks / 2", **ratio("decode", of(4, whose), of(2, whose), wanted)})
    return rows


def show(rows):
    print(f"{'ranks':>5} {'':8} {'ours':>8} {'theirs':>8}")
    for row in rows:
        wanted = f", wanted {row['wanted']}x" if row["wanted"] else ""
        verdict = "  BELOW" if row["wanted"] and row["ratio"] < row["wanted"] else ""
        compared = f"{row['ratio']:6.2f}x ({row['least']:.2f} to {row['most']:.2f}){wanted}{verdict}"
        if "ranks" in row:
            print(f"{row['ranks']:>5} {row['what']:8} {row['ours']:>8.2f} {row['theirs']:>8.2f} tokens/s {compared}")
        else:
            print(f"{row['what']} {compared}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dllama", required=True, metavar="PROGRAM")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--decode-tokens", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not os.access(arguments.dllama, os.X_OK):
        sys.exit(f"{arguments.dllama} is not a program; build distributed-llama according to its README and pass the path of its dllama")
    if arguments.prompt_tokens + arguments.decode_tokens >= 1024:
        sys.exit("prompt and text must have fewer than 1024 tokens")
    if not bramble.favour():
        print("running without a raised scheduling priority: needs root", file=sys.stderr)
    counts = [int(count) for count in arguments.ranks.split(",")]
    cores = sorted(os.sched_getaffinity(0))[:2]
    model = bramble.model("tinyllama-1.1b", "q4_0", FOLDER)
    rows = report(measure(Peer(os.path.abspath(arguments.dllama)), model, counts, cores, arguments))
    print(json.dumps(rows)) if arguments.json else show(rows)


if __name__ == "__main__":
    bramble.command(main)
