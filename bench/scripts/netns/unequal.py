#!/usr/bin/env python3
"""How close unequal nodes come to their ideal: paced daemons (pacing.py) of different speeds with the shares that
`console topology plan` assigns, compared with equal shares. The ideal is the speed of a single node times the sum of the speeds:
no time for messages, and work divisible into parts of any size.

usage: bench/scripts/netns/unequal.py [--sets 0.85,0.15 0.4,0.4,0.2] [--slows 1.0,1.0] [--to 0.6] [--shape llama-3.1-8b]
[--json]

--slows: the speeds of nodes that serve two clients while the last of them slows down to a share (--to) of its speed.
With `rebalance_after_ms` the nodes change the shares automatically; the script prints the seconds until the new shares
are in force, and how close they come to the new ideal.

Exit code 1 below 0.9 of an ideal, after more than 60 s until the new shares, or if an answer failed.
"""
import os
import subprocess
import sys
import threading
import time
import tomllib

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import pacing
from pacing import bramble

WANTED, IN_FORCE_S = 0.9, 60
CONTEXT, MBIT = 256, 1000
# Time before the node slows down: for loading and a first measurement.
SLOWS_AFTER_S = 45
REBALANCES = pacing.SETTINGS.replace("recover = false", "recover = true\nrebalance_after_ms = 15000")


def asker(network, model, arguments):
    def ask(daemons, tokens, *more):
        options = ["--exchange", arguments.exchange, *more]
        return bramble.generate(daemons, os.path.basename(model), bramble.letters(arguments.prompt), tokens, *options, enter=network.enter(), context=CONTEXT)
    return ask


def tpot(ask, daemons, motion, arguments, *more):
    """Milliseconds per token, without the slow motion."""
    ask(daemons, 2, *more)
    return bramble.median([ask(daemons, arguments.tokens, *more)["timings"]["tpot_ms"] for _ in range(arguments.requests)]) / motion


def alone(model, arguments):
    """Measures a single node of speed 1."""
    with pacing.network([MBIT], 1.0) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        network.add_daemons(cluster, pacing.settings(arguments.profile, 1.0, seed=1))
        return tpot(asker(network, model, arguments), cluster.daemons, 1.0, arguments, "--topology", "tp1")


def planned(model, speeds, alpha, arguments, folder):
    """The shares that the planner gives nodes of these speeds as ranks of one stage."""
    path = os.path.join(folder, "nodes.toml")
    with open(path, "w") as file:
        file.writelines(f'[[node]]\nname = "pi{index + 1}"\nspeed = {speed!r}\nfree_mib = 16000\n' for index, speed in enumerate(speeds))
    plan = bramble.console("topology", "plan", "--model", model, "--described", path, "--goal", "tpot", "--context", str(CONTEXT), "--exchange", arguments.exchange,
                           "--alpha-us", str(round(alpha)), "--bandwidth-mbit", str(MBIT), "--all")
    layout = next(one for one in plan["ranked"] if one["topology"] == f"tp{len(speeds)}")
    shares = {rank["node"]: rank["weight"] for rank in layout["replicas"][0][0]["ranks"]}
    return [shares[f"pi{index + 1}"] for index in range(len(speeds))]


def still(model, speeds, base_ms, arguments):
    """Measures nodes of constant speed."""
    motion = pacing.motion_of(len(speeds)) * arguments.slower
    settings = [pacing.settings(arguments.profile, motion, seed=index + 1, speed=speed) for index, speed in enumerate(speeds)]
    with pacing.network([MBIT] * len(speeds), motion) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        alpha = pacing.alpha_us(network) / motion
        network.add_daemons(cluster, settings)
        shares = planned(model, speeds, alpha, arguments, cluster.folder)
        layout, ask = ("--topology", f"tp{len(speeds)}"), asker(network, model, arguments)
        ours = tpot(ask, cluster.daemons, motion, arguments, *layout, "--weights", ",".join(map(str, shares)))
        # Without --weights the running topology would be used unchanged.
        equal = tpot(ask, cluster.daemons, motion, arguments, *layout, "--weights", ",".join("1" for _ in speeds))
    ideal = base_ms / sum(speeds)
    return {"speeds": speeds, "shares": shares, "tpot_ms": ours, "equal_ms": equal, "ideal_ms": ideal, "of_ideal": ideal / ours, "equal_of_ideal": ideal / equal}


def shown(network, daemon):
    """The shares of the ranks in the topology of a node."""
    command = [*network.enter(), bramble.program("console"), "topology", "show", "--nodes", daemon.address]
    run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=bramble.PATIENCE)
    if run.returncode:
        sys.exit(f"the node shows no topology: {run.stderr.strip()}")
    return [weight for stage in tomllib.loads(run.stdout)["stage"] for weight in stage.get("weights", [1] * len(stage["nodes"]))]


def slowing(model, speeds, base_ms, arguments):
    """Measures nodes of which the last slows down while they serve."""
    motion = pacing.motion_of(len(speeds)) * arguments.slower
    settings = [pacing.settings(arguments.profile, motion, seed=index + 1, speed=speed, base=REBALANCES) for index, speed in enumerate(speeds)]
    settings[-1] += f"slows_after_s = {SLOWS_AFTER_S}\nslows_to = {arguments.to!r}\n"
    failed, answers, ends = [], [], threading.Event()
    with pacing.network([MBIT] * len(speeds), motion) as network, bramble.Cluster(os.path.dirname(model)) as cluster:
        network.add_daemons(cluster, settings)
        slow_at, ask = time.monotonic() + SLOWS_AFTER_S, asker(network, model, arguments)
        before = tpot(ask, cluster.daemons, motion, arguments, "--topology", f"tp{len(speeds)}")
        equal = shown(network, cluster.daemons[0])

        def client():
            while not ends.is_set() and not failed:
                try:
                    answers.append(ask(cluster.daemons, arguments.tokens))
                except bramble.Failed as error:
                    failed.append(str(error))

        if time.monotonic() > slow_at:
            sys.exit(f"the first measurement took longer than {SLOWS_AFTER_S} s")
        clients = [threading.Thread(target=client, daemon=True) for _ in range(2)]
        for one in clients:
            one.start()
        while (shares := shown(network, cluster.daemons[0])) == equal and time.monotonic() < slow_at + 3 * IN_FORCE_S:
            time.sleep(0.5)
        in_force = time.monotonic() - slow_at
        time.sleep(5)
        ends.set()
        for one in clients:
            one.join()
        after = tpot(ask, cluster.daemons, motion, arguments)
    ideal = base_ms / (sum(speeds[:-1]) + speeds[-1] * arguments.to)
    return {"speeds": speeds, "to": arguments.to, "in_force_s": in_force, "shares": shares, "before_ms": before, "after_ms": after, "ideal_ms": ideal,
            "of_ideal": ideal / after, "answers": len(answers), "failed": failed}


def main():
    parser = pacing.parser(__doc__, shape="llama-3.1-8b", prompt=16, tokens=16, requests=3)
    parser.add_argument("--sets", nargs="*", default=["0.85,0.15", "0.4,0.4,0.2"], metavar="SPEED,..")
    parser.add_argument("--slows", default="1.0,1.0", metavar="SPEED,..")
    parser.add_argument("--to", type=float, default=0.6)
    arguments = parser.parse_args()
    bramble.favour()
    model = os.path.abspath(pacing.model(arguments.shape, "q4_0", arguments.models))
    tell = (lambda text: None) if arguments.json else (lambda text: print(text, flush=True))
    speeds_of = lambda text: [float(part) for part in text.split(",") if part]
    base_ms, rows, missed = alone(model, arguments), [], []
    tell(f"{arguments.shape} q4_0 on {arguments.profile}: a single node takes {base_ms:.1f} ms per token")
    for speeds in map(speeds_of, arguments.sets):
        row = still(model, speeds, base_ms, arguments)
        rows.append(row)
        tell(f"{speeds}: shares {row['shares']}, {row['tpot_ms']:.1f} ms per token, {row['of_ideal']:.2f} of the ideal; equal shares {row['equal_ms']:.1f} ms, {row['equal_of_ideal']:.2f}")
        if row["of_ideal"] < WANTED:
            missed.append(f"{speeds}: {row['of_ideal']:.2f} of the ideal, wanted {WANTED}")
    if speeds := speeds_of(arguments.slows):
        row = slowing(model, speeds, base_ms, arguments)
        rows.append(row)
        tell(f"{speeds}, the last at {arguments.to} of its speed: shares {row['shares']} after {row['in_force_s']:.0f} s; {row['before_ms']:.1f} ms per token before, "
             f"{row['after_ms']:.1f} afterwards, {row['of_ideal']:.2f} of the new ideal; {row['answers']} answers, {len(row['failed'])} failed")
        if row["of_ideal"] < WANTED or not 0 <= row["in_force_s"] <= IN_FORCE_S or row["failed"]:
            missed.append(f"slowing: {row['of_ideal']:.2f} of the ideal after {row['in_force_s']:.0f} s, failed: {row['failed']}")
    bramble.finish({"alone_ms": base_ms, "rows": rows}, missed, arguments.json)


if __name__ == "__main__":
    bramble.command(main)
