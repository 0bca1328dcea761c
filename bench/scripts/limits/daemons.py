#!/usr/bin/env python3
"""Real daemons on one machine, each with less memory than the size of the model file: bytes read from disk, time until
ready and peak memory, for the first load and for restarts with a cold and with a warm page cache.

usage: bench/scripts/limits/daemons.py [--shape NAME] [--format NAME] [--nodes N] [--limit-mb MB] [--prompt-tokens N] [--json]

Makes the model under target/limits with make_model (random weights, real shapes). The limits are memory control groups,
which need root; without root everything else runs and a message reports the missing limit. Leaves only the model
behind.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
RELEASE = os.path.join(ROOT, "target", "release")
FOLDER = os.path.join(ROOT, "target", "limits")
PATIENCE = 600
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import groups


class Node:
    def __init__(self, index, arguments):
        self.name, self.address = f"pi{index}", f"127.91.7.{index}:9999"
        self.state = os.path.join(FOLDER, "state", self.name)
        self.group = groups.Group(self.name, arguments.limit_mb << 20) if arguments.limit_mb else None
        self.process, self.log = None, None

    def start(self):
        os.makedirs(self.state, exist_ok=True)
        self.log = os.path.join(self.state, f"log-{time.monotonic_ns()}")
        command = [os.path.join(RELEASE, "brambled"), "--listen", self.address, "--name", self.name, "--exit-with-parent"]
        command += ["--models", FOLDER, "--state", self.state]
        with open(self.log, "w") as log:
            enter = self.group.enter() if self.group else []
            self.process = subprocess.Popen([*enter, *command], stdin=subprocess.PIPE, stderr=log)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)
        self.process = None

    def of_proc(self, file, key):
        with open(f"/proc/{self.process.pid}/{file}") as lines:
            found = re.search(rf"^{key}:\s+(\d+)", lines.read(), re.M)
        return int(found.group(1))

    def loading(self):
        """Seconds from the assignment until the shard is loaded and until the node is ready, from the log."""
        stamps = {}
        with open(self.log) as lines:
            for line in lines:
                for mark in ("idle -> loading", "loading -> prepared", "connecting -> ready"):
                    if mark in line:
                        text = line.split()[0].rstrip("Z")
                        base, fraction = text.split(".")
                        stamps[mark] = time.mktime(time.strptime(base, "%Y-%m-%dT%H:%M:%S")) + float("0." + fraction)
        begin = stamps["idle -> loading"]
        return stamps["loading -> prepared"] - begin, stamps["connecting -> ready"] - begin

    def packed(self):
        """The size of the packed shard once it is complete, otherwise `None`."""
        folder = os.path.join(self.state, "packed")
        files = [name for name in os.listdir(folder)] if os.path.isdir(folder) else []
        whole = [name for name in files if name.endswith(".shard")]
        return os.path.getsize(os.path.join(folder, whole[0])) if whole and len(whole) == len(files) else None


def console(*arguments):
    run = subprocess.run([os.path.join(RELEASE, "console"), *arguments], capture_output=True, text=True, timeout=PATIENCE)
    if run.returncode:
        sys.exit(f"console {arguments[0]} failed: {run.stdout}{run.stderr}")
    return json.loads(run.stdout)


def wait_for(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"timed out waiting until {what}")
        time.sleep(0.05)


def forget_pages():
    """Drops the page cache; returns whether that was possible."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as out:
            out.write("3")
        return True
    except OSError:
        return False


def listens(node):
    try:
        with open(node.log) as lines:
            return "listen=" in lines.read()
    except OSError:
        return False


def round_of(name, nodes, model, arguments, cold):
    is_cold = forget_pages() if cold else False
    for node in nodes:
        node.start()
    for node in nodes:
        wait_for(f"{node.name} listens", lambda: listens(node))
    before = [node.of_proc("io", "read_bytes") for node in nodes]
    addresses = ",".join(node.address for node in nodes)
    # Every letter is one token in the synthetic vocabulary.
    prompt = "a" * (arguments.prompt_tokens - 2)
    context = str(arguments.prompt_tokens + arguments.tokens + 8)
    answer = console("generate", "--yes", "--nodes", addresses, "--model", model, "--prompt", prompt, "--max-tokens", str(arguments.tokens),
                     "--temperature", "0", "--context", context, "--kv", arguments.kv, "--json")
    status = console("status", "--nodes", addresses, "--json")["nodes"]
    for node in nodes:
        wait_for(f"{node.name} has written its packed shard", lambda: node.packed())
    found = []
    for node, read, told in zip(nodes, before, status):
        loaded, ready = node.loading()
        packed = node.packed()
        found.append({
            "round": name, "node": node.name, "cold": is_cold, "slice_bytes": packed,
            "read_bytes": node.of_proc("io", "read_bytes") - read,
            "load_seconds": round(loaded, 3), "ready_seconds": round(ready, 3),
            "shard_and_kv_bytes": told["shard_bytes"], "peak_bytes": node.of_proc("status", "VmHWM") * 1024,
        })
    for node in nodes:
        node.stop()
    return found, len(answer["prompt_token_ids"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-7b", help="shape name of make_model")
    parser.add_argument("--format", default="q4_k_m")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--limit-mb", type=int, default=0, help="memory of each daemon, file pages included; 0: no limit")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not all(os.path.exists(os.path.join(RELEASE, name)) for name in ("brambled", "console", "make_model")):
        sys.exit("build first: cargo build --release --workspace")
    path = bramble.model(arguments.shape, arguments.format, FOLDER)
    model = os.path.basename(path)
    shutil.rmtree(os.path.join(FOLDER, "state"), ignore_errors=True)
    nodes = [Node(index + 1, arguments) for index in range(arguments.nodes)]
    limited = arguments.limit_mb > 0 and all(node.group.folder for node in nodes)
    if arguments.limit_mb and not limited:
        print(f"SKIPPED the limit: {nodes[0].group.reason}", file=sys.stderr)
    rounds = []
    try:
        for name, cold in (("first load", True), ("restart, cold", True), ("restart, warm", False)):
            found, prompt_tokens = round_of(name, nodes, model, arguments, cold)
            rounds += found
    finally:
        for node in nodes:
            node.stop()
            if node.group:
                node.group.remove()
        shutil.rmtree(os.path.join(FOLDER, "state"), ignore_errors=True)
    report = {"model": model, "file_bytes": os.path.getsize(path), "limit_bytes": arguments.limit_mb << 20 if limited else None,
              "prompt_tokens": prompt_tokens, "tokens": arguments.tokens, "rounds": rounds}
    if arguments.json:
        print(json.dumps(report))
        return
    limit = f"{arguments.limit_mb} MB each" if limited else "none"
    print(f"{model}: {report['file_bytes'] / 1e6:.0f} MB, limit {limit}; {prompt_tokens} prompt tokens, {arguments.tokens} generated")
    print(f"{'round':<15} {'node':<5} {'slice MB':>9} {'read MB':>9} {'ratio':>6} {'load s':>7} {'ready s':>8} {'peak MB':>8} {'over shard and KV':>18}")
    for one in rounds:
        over = (one["peak_bytes"] - one["shard_and_kv_bytes"]) / 2**20
        print(f"{one['round']:<15} {one['node']:<5} {one['slice_bytes'] / 1e6:>9.1f} {one['read_bytes'] / 1e6:>9.1f} "
              f"{one['read_bytes'] / one['slice_bytes']:>6.3f} {one['load_seconds']:>7.2f} {one['ready_seconds']:>8.2f} "
              f"{one['peak_bytes'] / 2**20:>8.0f} {over:>14.1f} MiB")


if __name__ == "__main__":
    main()
