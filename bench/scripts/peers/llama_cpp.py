#!/usr/bin/env python3
"""Compares brambled with llama.cpp on this machine: the same files, threads and prompt lengths, alternating; prints
medians, ratios and whether the most probable tokens are equal. llama.cpp runs with repacked and with plain weights; the
faster of the two counts, row by row.

cargo build --release --locked && bench/scripts/peers/llama_cpp.py [--threads 1,2] [--rounds 3] MODEL.gguf ..

Installs llama-cpp-python (built for this machine, without AMX, which no Raspberry Pi has) below target/peers. Without a
model it makes six of the TinyLlama-1.1B and Llama-3.2-1B shapes there. Run it on an otherwise idle machine.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
PEERS = os.path.join(ROOT, "target", "peers")
PYTHON = os.path.join(PEERS, "venv", "bin", "python")
PREFILL = [128, 512]
TOKENS = 24
IDS = 32
CLEAR = 0.02
# Decode runs per turn; their median counts.
DECODES = 3


def install():
    if os.path.exists(PYTHON) and subprocess.run([PYTHON, "-c", "import llama_cpp"], capture_output=True).returncode == 0:
        return
    print("installing llama-cpp-python; compiling it takes minutes", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", os.path.join(PEERS, "venv")], check=True)
    flags = "-DGGML_NATIVE=ON -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF"
    subprocess.run(
        [PYTHON, "-m", "pip", "install", "-q", "--no-binary", "llama-cpp-python", "llama-cpp-python"],
        env={**os.environ, "CMAKE_ARGS": flags},
        check=True,
    )


def models():
    made = []
    for shape in ["tinyllama-1.1b", "llama-3.2-1b"]:
        for name in ["q4_0", "q4_k_m", "q8_0"]:
            path = os.path.join(PEERS, f"{shape}-{name}.gguf")
            if not os.path.exists(path):
                command = ["cargo", "run", "-q", "--release", "--locked", "-p", "bramble-tests", "--bin", "make_model", "--"]
                subprocess.run([*command, shape, name, path], cwd=ROOT, check=True)
            made.append(path)
    return made


def worker(path, threads, plain):
    """Runs in the peer's process: one measurement per line of input. `plain`: without repacked weights."""
    # This file has the same name as the module.
    sys.path = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]
    import llama_cpp
    from llama_cpp import Llama

    if plain:
        binding = sys.modules["llama_cpp.llama_cpp"]
        defaults = binding.llama_model_default_params

        def without_repacking():
            parameters = defaults()
            parameters.use_extra_bufts = False
            return parameters

        binding.llama_model_default_params = without_repacking

    model = Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)
    prompt = [3 + position % 250 for position in range(max(PREFILL))]

    def prefill(count):
        model.reset()
        begin = time.perf_counter()
        model.eval(prompt[:count])
        return count / (time.perf_counter() - begin)

    def decode():
        prefill(8)
        begin = time.perf_counter()
        for token in range(TOKENS):
            model.eval([5 + token])
        return TOKENS / (time.perf_counter() - begin)

    def greedy():
        """Ids of the prompt and of the 32 most probable tokens after it, and the margin by which each won, relative to
        the largest logit."""
        model.reset()
        ids, wins = list(range(3, 11)), []
        model.eval(ids)
        for _ in range(IDS):
            row = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
            logits = sorted(((row[id], id) for id in range(model.n_vocab())), reverse=True)
            wins.append((logits[0][0] - logits[1][0]) / abs(logits[0][0]))
            ids.append(logits[0][1])
            model.eval([ids[-1]])
        return {"ids": ids, "wins": wins}

    prefill(32)
    for line in sys.stdin:
        if line.strip() == "ids":
            print(json.dumps(greedy()), flush=True)
            continue
        found = {f"prefill {count}": prefill(count) for count in PREFILL}
        print(json.dumps({**found, "decode": statistics.median(decode() for _ in range(DECODES))}), flush=True)


def ours(path, threads, ids):
    command = [os.path.join(ROOT, "target", "release", "brambled"), "bench", "node", "--json", "--model", path]
    command += ["--threads", str(threads), "--prefill", ",".join(map(str, PREFILL)), "--context", "0"]
    command += ["--tokens", str(TOKENS), "--repeats", str(DECODES), "--ids", ",".join(map(str, ids))]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rates = {f"prefill {one['tokens']}": one["tokens_per_second"] for one in found["prefill"]}
    return {**rates, "decode": found["decode"][0]["tokens_per_second"]}, found


def start(path, threads, *more):
    command = [PYTHON, os.path.abspath(__file__), "--worker", path, "--threads", str(threads), *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(peer, what):
    peer.stdin.write(what + "\n")
    peer.stdin.flush()
    return json.loads(peer.stdout.readline())


def compare(path, threads, rounds):
    peers = {"repacked": start(path, threads), "plain": start(path, threads, "--plain")}
    greedy = ask(peers["repacked"], "ids")
    theirs, own, last = {name: [] for name in peers}, [], {}
    for _ in range(rounds):
        for name, peer in peers.items():
            theirs[name].append(ask(peer, "measure"))
        found, last = ours(path, threads, greedy["ids"])
        own.append(found)
    for peer in peers.values():
        peer.stdin.close()
        peer.wait(timeout=60)
    for what in own[0]:
        mine = statistics.median(one[what] for one in own)
        rates = {name: statistics.median(one[what] for one in found) for name, found in theirs.items()}
        best = max(rates, key=rates.get)
        name = os.path.basename(path)
        print(
            f"{name:28} {threads} threads  {what:12} {mine:8.2f} {rates[best]:8.2f} tokens/s  {mine / rates[best]:5.2f}x  "
            f"{last['kernels']}, peer {best}",
            flush=True,
        )
    # If the two best logits are closer than the error of int8 activations, either token may win.
    clear = [at for at, win in enumerate(greedy["wins"]) if win > CLEAR]
    first = len(greedy["ids"]) - IDS
    equal = sum(last["ids"][first - 1 + at] == greedy["ids"][first + at] for at in clear)
    share = 100 * last["decode"][0]["share_of_bandwidth"]
    print(f"{'':28} {threads} threads  greedy ids   {equal} of {len(clear)} equal (two best logits apart by more than {CLEAR:.0%}); decode at {share:.0f} % of the read bandwidth")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", metavar="MODEL.gguf")
    arguments = parser.parse_args()
    threads = [int(count) for count in arguments.threads.split(",")]
    if arguments.worker:
        return worker(arguments.worker, threads[0], arguments.plain)
    os.makedirs(PEERS, exist_ok=True)
    install()
    print(f"{'model':28} {'':10} {'':12} {'ours':>8} {'peer':>8}")
    for path in arguments.models or models():
        for count in threads:
            compare(path, count, arguments.rounds)


if __name__ == "__main__":
    main()
