#!/usr/bin/env python3
"""The straggler that `console generate --profile` names: ranks as one-core processes, a shape of 1.1B. Alternates between stopping
one rank for 2 ms in every 10 (SIGSTOP and SIGCONT; the rank alternates) and stopping none. Next to each result it
prints a kernel figure for every rank: the share of the run in which its engine was ready but did not run.

cargo build --release --locked --workspace && bench/scripts/speed/straggler.py [--rounds 6] [--record FOLDER] [--json]

--record also writes the input of tests/scenarios/straggler.rs: the all-reduces of a run with a stopped rank, and the
compute times of runs of two and of three ranks (two of which share a core) without one. As root, the script raises its
scheduling priority.
"""
import argparse
import json
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
from stopper import Stopper

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
# Number of times of a run that are kept as jitter, over all ranks.
JITTER_TIMES = 2048


def waited(daemon):
    """Nanoseconds that each thread of the engine was ready but did not run, by thread id."""
    folder, found = f"/proc/{daemon.process.pid}/task", {}
    for thread in os.listdir(folder):
        with open(f"{folder}/{thread}/comm") as comm, open(f"{folder}/{thread}/schedstat") as schedstat:
            if comm.read().startswith(("engine", "compute-")):
                found[thread] = int(schedstat.read().split()[1])
    return found


def huge(daemon):
    """The share of a daemon's memory in huge pages: without them weights are read more slowly, which no scheduling
    delay shows."""
    with open(f"/proc/{daemon.process.pid}/smaps_rollup") as file:
        sizes = {line.split()[0]: int(line.split()[1]) for line in file if line.split()[-1] == "kB"}
    return sizes["AnonHugePages:"] / sizes["Rss:"]


def profile(daemons, model, tokens, slowed, arguments):
    """One run with a number of decoded tokens; returns the console's result, the records, and the kernel's figures."""
    records = os.path.join(os.path.dirname(daemons[0].state), "records.json")
    nodes = ",".join(daemon.address for daemon in daemons)
    before, began = [waited(daemon) for daemon in daemons], time.monotonic()
    stopper = Stopper(daemons[slowed].process, arguments.stop_ms, arguments.every_ms) if slowed is not None else None
    if stopper:
        stopper.start()
    try:
        # The first token belongs to the prefill.
        command = ["generate", "--profile", "--yes", "--nodes", nodes, "--model", model, "--prompt", bramble.letters(8), "--max-tokens", str(tokens + 1)]
        answer = bramble.console(*command, "--temperature", "0", "--context", "512", "--records", records)
    finally:
        share = stopper.end() if stopper else 0.0
    time_ns = (time.monotonic() - began) * 1e9
    delays = {}
    for daemon, then in zip(daemons, before):
        delays[daemon.name] = max((now - then.get(thread, now) for thread, now in waited(daemon).items()), default=0) / time_ns
    with open(records) as file:
        lists = json.load(file)["records"]
    found = {
        "slowed": daemons[slowed].name if slowed is not None else None,
        "stopped_share": share,
        "straggler": answer["straggler"],
        "bottleneck": answer["bottleneck"],
        "run_queue": delays,
        "huge_pages": {daemon.name: huge(daemon) for daemon in daemons},
        "tokens": len(answer["token_ids"]),
        "decode_tokens_per_second": answer["timings"]["decode_tokens_per_second"],
    }
    return found, [[record for record in records if record["tokens"] == 1] for records in lists]


def show(found):
    delays = ", ".join(f"{name} {share:.1%} ({found['huge_pages'][name]:.0%} huge pages)" for name, share in found["run_queue"].items())
    slowed = f"{found['slowed']} stopped {found['stopped_share']:.0%}" if found["slowed"] else "none stopped"
    named = "no rank named"
    if found["straggler"]:
        one = found["straggler"]
        named = f"{one['node']} named after {one['after_tokens']} tokens: late {one['late']:.0%}, last {one['last']:.0%}; cause: {one['cause']}"
    print(f"{slowed:20} {found['decode_tokens_per_second']:6.1f} tokens/s  {named}\n{'':20} waited for a core: {delays}", flush=True)


def write_exchanges(path, lists):
    """Writes the all-reduces of a run; those of a step with the same last rank form one line."""
    with open(path, "w") as file:
        file.write("# rank step last count time_ns late_ns: sums over the all-reduces of a step that ended with the same rank\n")
        for rank, records in enumerate(lists):
            sums = {}
            for record in records:
                one = sums.setdefault((record["step"], record["last"]), [0, 0, 0])
                for index, value in enumerate((1, record["compute"] + record["wait"] + record["wire"], record["late"])):
                    one[index] += value
            for (step, last), one in sums.items():
                file.write(" ".join(map(str, (rank, step, last, *one))) + "\n")


def write_jitter(path, runs):
    """Writes the compute time of each rank before its feed-forward all-reduces, in order, rank by rank, as input for
    `console topology simulate --jitter-file`. Omits the first layer and normalises different shares: every time is scaled to a
    median of 1 ms for its rank."""
    ranks = len(runs[0])
    with open(path, "w") as file:
        for rank in range(ranks):
            times = [one["compute"] for lists in runs for one in lists[rank] if one["kind"] == "FeedForward" and one["layer"] > 0]
            times = times[-(JITTER_TIMES // ranks) :]
            median = bramble.median(times)
            for one in times:
                file.write(f"{round(one * 1e6 / median)}\n")


def measure(arguments):
    model = arguments.model or bramble.model(arguments.shape, arguments.format, FOLDER)
    folder, model = os.path.split(os.path.abspath(model))
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("needs two cores; this process may use only one")
    addresses, all_found = bramble.loopback(3), []
    with bramble.Cluster(folder) as cluster:

        def add(index):
            enter = ["taskset", "-c", str(cores[index % 2])]
            return cluster.add(f"pi{index + 1}", addresses[index], enter=enter, settings=bramble.QUIET, variant=[bramble.PLAIN])

        def run(slowed=None):
            found, lists = profile(daemons, model, arguments.tokens, slowed, arguments)
            all_found.append(found)
            arguments.json or show(found)
            return lists

        daemons = [add(0), add(1)]
        profile(daemons, model, 8, None, arguments)
        stopped, quiet = [], []
        for number in range(arguments.rounds):
            stopped.append(run(number % 2))
            quiet.append(run())
        if arguments.record:
            os.makedirs(arguments.record, exist_ok=True)
            for rank, lists in enumerate(stopped[:2]):
                write_exchanges(os.path.join(arguments.record, f"rank{rank}-stopped.txt"), lists)
            write_exchanges(os.path.join(arguments.record, "quiet.txt"), quiet[0])
            write_jitter(os.path.join(arguments.record, "jitter-tp2.txt"), quiet)
            daemons.append(add(2))
            profile(daemons, model, 8, None, arguments)
            arguments.json or print("three ranks, the first and the third on one core:")
            write_jitter(os.path.join(arguments.record, "jitter-tp3.txt"), [run() for _ in range(2)])
    return all_found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file instead of a shape")
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--rounds", type=int, default=6, help="rounds, each a run with a stopped rank and one without")
    parser.add_argument("--tokens", type=int, default=64, help="tokens decoded in a run")
    parser.add_argument("--stop-ms", type=float, default=2)
    parser.add_argument("--every-ms", type=float, default=10)
    parser.add_argument("--record", metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not bramble.favour():
        print("running without a raised scheduling priority: needs root", file=sys.stderr)
    all_found = measure(arguments)
    slowed = [one for one in all_found if one["slowed"]]
    right = [one for one in slowed if one["straggler"] and one["straggler"]["node"] == one["slowed"]]
    quiet = [one for one in all_found if not one["slowed"] and one["straggler"]]
    summary = {"slowed": len(slowed), "named": len(right), "quiet": len(all_found) - len(slowed), "named_of_quiet": len(quiet)}
    if arguments.json:
        print(json.dumps({"runs": all_found, **summary}))
    else:
        print(f"{len(right)} of {len(slowed)} stopped ranks named; a rank named in {len(quiet)} of {summary['quiet']} runs without one")


if __name__ == "__main__":
    bramble.command(main)
