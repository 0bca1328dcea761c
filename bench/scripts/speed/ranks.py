#!/usr/bin/env python3
"""Ranks as one-core processes on this machine, a shape of 1.1B: one process, two ranks of a tensor-parallel group, the
same two without the exchange, four ranks on two cores, and two stages of a pipeline, alternating. Prints medians of the
rounds, and ratios with their targets.

cargo build --release --locked --workspace && bench/scripts/speed/ranks.py [--rounds 5] [--formats q4_0,q4_k_m] [--exchange f16]
[--json]

A topology that this build does not have is reported as SKIPPED. Run it on an otherwise idle machine. As root, the script raises its scheduling priority.
"""
import argparse
import json
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble

FOLDER = os.path.join(bramble.ROOT, "target", "peers")
OMIT = "--omit-exchange"
READ_SECONDS = 0.3


class Reader:
    """A process on one core that reads memory on request."""

    def __init__(self, core):
        command = ["taskset", "-c", str(core), bramble.program("read_bandwidth")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line()

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("read_bandwidth ended")
        return line

    def ask(self):
        self.process.stdin.write(f"{READ_SECONDS}\n")
        self.process.stdin.flush()

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def bandwidth(readers):
    """Read bandwidth in GB/s of one process, and of two at once."""
    readers[0].ask()
    one = float(readers[0].line())
    for reader in readers:
        reader.ask()
    return {"one": one / 1e9, "two": sum(float(reader.line()) for reader in readers) / 1e9}


class SetUp:
    """A configuration: the daemons, and the options of console."""

    def __init__(self, name, daemons, *more):
        self.name, self.daemons, self.more = name, daemons, list(more)

    def measure(self, model, arguments):
        """One round: rates in tokens per second, medians of its repeats."""

        def run(prompt, tokens):
            more = [*self.more, "--exchange", arguments.exchange]
            answer = bramble.generate(self.daemons, os.path.basename(model), "a" * prompt, tokens, *more, context=context)
            if len(answer["token_ids"]) < tokens // 2:
                sys.exit(f"{self.name}: the text ended after {len(answer['token_ids'])} of {tokens} tokens")
            return answer["timings"]

        context = max(arguments.prompt_tokens, arguments.long_tokens, arguments.decode_tokens) + 64
        # Assigns the model and touches every page.
        run(32, 8)
        each = range(arguments.repeats)
        rates = {"prefill": bramble.median([run(arguments.prompt_tokens, 1)["prefill_tokens_per_second"] for _ in each])}
        if arguments.long_tokens and self.name in ("one", "pp2"):
            rates["long prefill"] = run(arguments.long_tokens, 1)["prefill_tokens_per_second"]
        decodes = [run(8, arguments.decode_tokens) for _ in each]
        for name, of in (("decode", "decode_tokens_per_second"), ("network", "network_fraction")):
            rates[name] = bramble.median([decode[of] for decode in decodes])
        return rates


def refused(error):
    """The reason, if console does not support this topology or option."""
    try:
        found = json.loads(error.out)["error"]
    except ValueError:
        return str(error) if error.code == 2 else None
    return found["message"] if found["code"] == "topology_invalid" else None


def set_ups(cluster, cores):
    """All configurations that this build may support, on daemons of one core each."""
    addresses, names = bramble.loopback(6), (f"pi{index + 1}" for index in range(6))
    settings = bramble.QUIET

    def daemon(index, *more):
        return cluster.add(next(names), addresses[index], enter=["taskset", "-c", str(cores[index % 2])], settings=settings, variant=[bramble.PLAIN, *more])

    four = [daemon(index) for index in range(4)]
    # Without a topology, console would choose one, or keep one that runs.
    found = [
        SetUp("one", four[:1], "--topology", "tp1"),
        SetUp("tp2", four[:2], "--topology", "tp2"),
        SetUp("tp2 without exchange", [daemon(index, OMIT) for index in (4, 5)], "--topology", "tp2"),
        SetUp("tp4", four, "--topology", "tp4"),
        SetUp("pp2", four[:2], "--topology", "pp2"),
    ]
    return found


def rounds(kept, readers, model, arguments):
    """All rounds: a list of results per configuration, and the bandwidths."""
    found, read = {}, []
    for number in range(arguments.rounds):
        read.append(bandwidth(readers))
        for one in list(kept):
            try:
                found.setdefault(one.name, []).append(one.measure(model, arguments))
            except bramble.Failed as error:
                reason = refused(error)
                if reason is None or number > 0:
                    raise
                print(f"SKIPPED {one.name}: {reason}", file=sys.stderr)
                kept.remove(one)
                del found[one.name]
        read.append(bandwidth(readers))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return found, read


def ratios(found, read):
    """The comparisons: name, median over the rounds, minimum, maximum, and target."""
    share = bramble.median([one["two"] / one["one"] for one in read])

    def ratio(what, over, under, wanted):
        if over in found and under in found and what in found[over][0]:
            each = [one[what] / other[what] for one, other in zip(found[over], found[under])]
            return [{"what": f"{what} of {over} / {under}", "ratio": bramble.median(each), "least": min(each), "most": max(each), "wanted": wanted}]
        return []

    return [
        *ratio("prefill", "tp2", "one", 1.8),
        *ratio("decode", "tp2", "one", 0.95 * share),
        *ratio("prefill", "tp2", "tp2 without exchange", 0.95),
        *ratio("decode", "tp2", "tp2 without exchange", 0.95),
        *ratio("decode", "tp4", "tp2", 0.8),
        *ratio("long prefill", "pp2", "one", 1.7),
    ]


def measure(form, arguments):
    model = bramble.model(arguments.shape, form, FOLDER)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("needs two cores; this process may use only one")
    readers = [Reader(core) for core in cores]
    try:
        with bramble.Cluster(FOLDER) as cluster:
            found, read = rounds(set_ups(cluster, cores), readers, model, arguments)
    finally:
        for reader in readers:
            reader.stop()
    medians = {name: {what: bramble.median([one[what] for one in each]) for what in each[0]} for name, each in found.items()}
    return {
        "model": os.path.basename(model),
        "exchange": arguments.exchange,
        "rounds": arguments.rounds,
        "prompt_tokens": arguments.prompt_tokens,
        "long_tokens": arguments.long_tokens,
        "bandwidth": {name: bramble.median([one[name] for one in read]) for name in ("one", "two")},
        "tokens_per_second": medians,
        "ratios": ratios(found, read),
    }


def show(report):
    bandwidth = report["bandwidth"]
    print(f"{report['model']}: {report['exchange']}, medians of {report['rounds']} rounds, prompts of {report['prompt_tokens']} and {report['long_tokens']} tokens")
    print(f"  read bandwidth of one one-core process {bandwidth['one']:.1f} GB/s, of two {bandwidth['two']:.1f}")
    for name, rates in report["tokens_per_second"].items():
        of_long = f"  long {rates['long prefill']:8.1f}" if "long prefill" in rates else ""
        print(f"  {name:22} prefill {rates['prefill']:8.1f}  decode {rates['decode']:7.2f} tokens/s  network {rates['network']:4.0%}{of_long}")
    for one in report["ratios"]:
        verdict = "" if one["ratio"] >= one["wanted"] else "  BELOW"
        print(f"  {one['what']:42} {one['ratio']:5.2f}x ({one['least']:.2f} to {one['most']:.2f}), wanted {one['wanted']:.2f}x{verdict}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="shape name of make_model")
    parser.add_argument("--formats", default="q4_0,q4_k_m")
    parser.add_argument("--exchange", default="f32", help="format of partial sums: f32, f16 or q80")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each prompt and each answer in a round")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--long-tokens", type=int, default=1536, help="length of the prompt for the comparison with two stages; 0: none")
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not bramble.favour():
        print("running without a raised scheduling priority: needs root", file=sys.stderr)
    for form in arguments.formats.split(","):
        report = measure(form, arguments)
        print(json.dumps(report), flush=True) if arguments.json else show(report)


if __name__ == "__main__":
    bramble.command(main)
