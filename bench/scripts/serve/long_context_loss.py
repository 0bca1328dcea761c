#!/usr/bin/env python3
"""Kills (kill -9) each rank in turn while an answer streams behind a long prompt, restarts it, and compares the text with
that of an undisturbed stream: how long the stream paused, how many tokens were read from copies of keys and values on
other nodes, and how many were computed again; with copies and without, and after a loss for good on the remaining nodes.

cargo build --release --locked --workspace && bench/scripts/serve/long_context_loss.py [--topologies tp2,tp4,pp2-tp2]
[--prompt 4000] [--tokens 256] [--shape tinyllama-1.1b] [--format q4_0] [--models FOLDER] [--json]

Daemons of one thread on loopback; exit code 1 if a text differs, or if more than 64 positions are computed again. Fewer
ranks round sums differently: after a loss for good the text may differ if theirs does without any loss, and then only
behind the loss.
"""
import argparse
import asyncio
import json
import os
import random
import re
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
import client

SETTINGS = "packed_shards = false\nthreads = 1\nkv_store = \"off\"\nstall_ms = 60000\n"
RECOMPUTED_MAX = 64
# The gateway is on a node that is never killed.
GATEWAY = "recover = false\n"


def count(topology):
    """Number of nodes of a layout."""
    nodes = 1
    for part in topology.split("-"):
        nodes *= int("".join(letter for letter in part if letter.isdigit()))
    return nodes


async def stream(host, body, victim=None, back=True):
    """One stream, of which a rank is killed after a quarter of its tokens, and restarted if `back`."""
    arrived, state = [], {}

    def on_text(answering):
        arrived.append(time.monotonic())
        if victim and "killed" not in state and len(arrived) >= body["max_tokens"] // 4:
            state["killed"], state["text"] = time.monotonic(), answering.text
            victim.stop()
            if back:
                asyncio.get_running_loop().run_in_executor(None, victim.start)

    answer = await client.ask(host, "POST", "/v1/completions", body, on_text=on_text)
    if answer.status != 200 or not answer.whole or answer.error:
        sys.exit(f"status {answer.status}: {answer.error or answer.body[:300]}")
    after = [at for at in arrived if at > state.get("killed", float("inf"))]
    pause = max((later - now for now, later in zip([state["killed"], *after], after)), default=0) if after else 0
    return answer, pause, state.get("text", "")


def recomputed(daemons, begin):
    """From the logs since then: tokens of the latest prompt that were read, and those that were computed."""
    found = None
    for daemon, offset in zip(daemons, begin):
        for line in daemon.text(offset).splitlines():
            if "resumed answer or stored prompt" in line:
                fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
                found = int(fields["read"]), int(fields["computed"])
    return found


def tensor_parallel(topology):
    """A layout that continues with one rank less."""
    if not re.fullmatch(r"tp[2-9]\d*", topology):
        raise argparse.ArgumentTypeError("give a layout of one stage, such as tp4")
    return topology


def context_of(arguments):
    return arguments.prompt + arguments.tokens + 64


def undisturbed(ranks, models, body, arguments):
    """The text of so many ranks, which compute the whole prompt themselves."""
    with bramble.Cluster(models) as cluster:
        settings = SETTINGS + "kv_copies = false\n"
        daemons = [cluster.add(f"few{index + 1}", address, settings=settings) for index, address in enumerate(bramble.loopback(ranks))]
        bramble.generate(daemons, body["model"], "ROMEO:", 2, "--topology", f"tp{ranks}", context=context_of(arguments))
        host = client.place(daemons[0])
        asyncio.run(client.until_healthy([host]))
        return asyncio.run(stream(host, body))[0].text


def measure(topology, arguments, copies, rows, back=True):
    path = bramble.model(arguments.shape, arguments.format, arguments.models, arguments.context)
    models, model = os.path.split(path)
    nodes = count(topology)
    chance = random.Random(1)
    prompt = [chance.randrange(300, 900) for _ in range(arguments.prompt)]
    body = {"model": model, "prompt": prompt, "max_tokens": arguments.tokens, "temperature": 0.8, "seed": 3, "stream": True,
            "stream_options": {"include_usage": True}, "ignore_eos": True}
    failed, of_fewer = False, None if back else undisturbed(nodes - 1, models, body, arguments)
    with bramble.Cluster(models) as cluster:
        addresses = bramble.loopback(nodes + 1)
        settings = SETTINGS + ("" if copies else "kv_copies = false\n") + ("" if back else "exclude_after_ms = 1000\n")
        daemons = [cluster.add(f"pi{index + 1}", address, settings=settings) for index, address in enumerate(addresses[:nodes])]
        peers = ", ".join(f'"{daemon.address}"' for daemon in daemons)
        gateway = cluster.add("gateway", addresses[nodes], settings=f"peers = [{peers}]\n" + GATEWAY)
        context = context_of(arguments)
        bramble.generate(daemons, model, "ROMEO:", 2, "--topology", topology, context=context)
        host = client.place(gateway)
        asyncio.run(client.until_healthy([host]))
        begun = time.monotonic()
        expected, _, _ = asyncio.run(stream(host, body))
        whole = time.monotonic() - begun
        first = expected.first_token
        for rank, victim in enumerate(daemons):
            begin = [os.path.getsize(daemon.log) for daemon in daemons]
            answer, pause, before = asyncio.run(stream(host, body, victim, back))
            counts = recomputed(daemons, begin)
            same = answer.text == expected.text
            is_good = same or (of_fewer not in (None, expected.text) and answer.text.startswith(before) and expected.text.startswith(before))
            row = {"topology": topology, "for_good": not back, "copies": copies, "rank": rank, "pause_s": round(pause, 2), "same_text": same,
                   "fewer_ranks_same_text": None if back else of_fewer == expected.text, "read": counts and counts[0], "computed": counts and counts[1], "prefill_s": round(first, 2), "whole_s": round(whole, 2)}
            rows.append(row)
            if not arguments.json:
                print(f"{topology:8} {'back    ' if back else 'for good'} copies {'on ' if copies else 'off'} rank {rank}: pause {pause:6.2f} s, read {row['read']}, computed {row['computed']}, "
                      f"text {'same' if same else 'differs, as without a loss' if is_good else 'DIFFERS'} (first token without a loss {first:.2f} s)", flush=True)
            failed |= not is_good or (copies and (counts is None or counts[1] > RECOMPUTED_MAX))
            if not back:
                victim.start()
                bramble.console("node", "include", victim.name, "--yes", "--nodes", ",".join(daemon.address for daemon in daemons))
                bramble.generate(daemons, model, "ROMEO:", 2, "--topology", topology, context=context)
            asyncio.run(client.until_healthy([host]))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default="tp2,tp4,pp2-tp2")
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--shape", default="tinyllama-1.1b")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--models", default=os.path.join(bramble.ROOT, "target", "models"))
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--with-copies-only", action="store_true")
    parser.add_argument("--for-good", metavar="TOPOLOGY", type=tensor_parallel, help="also lose each rank of this layout, such as tp4, without a return")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows, failed = [], False
    for topology in arguments.topologies.split(","):
        for copies in (True,) if arguments.with_copies_only else (True, False):
            failed |= measure(topology, arguments, copies, rows)
    if arguments.for_good:
        failed |= measure(arguments.for_good, arguments, True, rows, back=False)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    bramble.command(main)
