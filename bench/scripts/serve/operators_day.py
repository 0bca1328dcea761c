#!/usr/bin/env python3
"""An operator's day without a screen, on four real daemons: every step is a console command with --json (and --yes if
it acts), whose exit code is checked. Prints a line per step; exits with 1 at the first step that fails.

cargo build --release --locked --workspace && bench/scripts/serve/operators_day.py [--programs target/debug]
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import paths  # noqa: F401
import bramble
from rolling import Supervisor

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
SECRET = "a prompt that no log may have"


class Day:
    """Runs console in a separate home folder and logs each command."""

    def __init__(self, home):
        self.home, self.environment = home, {**os.environ, "XDG_CONFIG_HOME": home, "HOME": home}
        self.environment.pop("BRAMBLE_NODES", None)
        self.count = 0

    def raw(self, *arguments):
        command = [bramble.program("console"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, stdin=subprocess.DEVNULL, timeout=bramble.PATIENCE, cwd=self.home)

    def do(self, *arguments, code=0):
        """The object that a command prints; the command must exit with `code`."""
        run = self.raw(*arguments, "--json")
        if run.returncode != code:
            sys.exit(f"console {' '.join(arguments)}: exit code {run.returncode} instead of {code}\n{run.stdout}{run.stderr}")
        self.count += 1
        print(f"{self.count:3} ok  console {' '.join(arguments)}", flush=True)
        return json.loads(run.stdout.splitlines()[-1])

    def start(self, *arguments):
        command = [bramble.program("console"), *arguments, "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment, stdin=subprocess.DEVNULL)


def want(is_so, what):
    if not is_so:
        sys.exit(f"expectation failed: {what}")


def until(what, look):
    """Polls `look` until it returns something; returns that."""
    deadline = time.monotonic() + bramble.PATIENCE / 5
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    sys.exit(f"timed out waiting until {what}")


class Slowed(threading.Thread):
    """Stops a process for 5 ms in every 10 ms."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.ended = pid, threading.Event()

    def run(self):
        while not self.ended.is_set():
            for number, pause in ((signal.SIGSTOP, 0.005), (signal.SIGCONT, 0.005)):
                os.kill(self.pid, number)
                time.sleep(pause)

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.ended.set()
        self.join()
        os.kill(self.pid, signal.SIGCONT)


class Busy(threading.Thread):
    """Generates one text after another, so that there are all-reduces to observe."""

    def __init__(self, day):
        super().__init__(daemon=True)
        self.day, self.ended = day, threading.Event()

    def run(self):
        while not self.ended.is_set():
            self.day.raw("generate", "--model", MODEL, "--prompt", "ROMEO:", "--max-tokens", "300", "--json")

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def straggler(day, pid):
    """The straggler that sync names while one node is slowed."""
    with Slowed(pid), Busy(day):

        def named():
            run = day.raw("sync", "--json")
            found = json.loads(run.stdout) if run.returncode == 0 else {}
            return found if found.get("straggler") else None

        return until("sync names a straggler", named)


def running(day):
    """The running requests, as reported by the heads."""
    heads = json.loads(day.raw("requests", "--json").stdout)["heads"]
    return [one for head in heads for one in head["running"]]


def hanging(day, rank):
    """Starts a request that hangs because a rank is stopped; tries again if the text was faster."""

    def hangs():
        asked = day.start("generate", "--model", MODEL, "--prompt", SECRET, "--max-tokens", "450")
        while asked.poll() is None:
            if running(day):
                os.kill(rank, signal.SIGSTOP)
                found = running(day)
                if found:
                    return asked, found[0]["id"]
                os.kill(rank, signal.SIGCONT)
        asked.communicate()
        return None

    return until("a request hangs", hangs)


def cancelled(day, daemons):
    """Starts a request and cancels it from another console."""
    rank = daemons[3].process.pid
    asked, request = hanging(day, rank)
    try:
        day.do("requests", "cancel", request, "--dry-run")
        want(running(day), "a dry run cancels nothing")
        day.do("requests", "cancel", request, "--yes")
    finally:
        os.kill(rank, signal.SIGCONT)
    out, err = asked.communicate(timeout=bramble.PATIENCE)
    want(json.loads(out)["finish_reason"] == "cancelled", f"its owner is notified of the cancellation: {out}{err}")
    return request


def morning(day, addresses, folder):
    """Check the cluster, its health and what would fit, then run it."""
    day.do("status", code=2)
    day.do("cluster", "add", "home", *addresses)
    want(day.do("cluster", "list")["clusters"][0]["used"], "the added cluster is in use")
    want([node["state"] for node in day.do("status")["nodes"]] == ["idle"] * 4, "all nodes are idle")
    found = day.raw("doctor", "--json").returncode
    want(found in (0, 6, 7), f"doctor ended with {found}")
    day.do("topology", "plan", "--model", "llama-3.2-1b", "--count", "4")
    day.do("sync", code=2)
    path = os.path.join(folder, "tp4.toml")
    with open(path, "w") as file:
        file.write(f'model = "{MODEL}"\n[[stage]]\nnodes = {json.dumps(addresses)}\n')
    day.do("topology", "assign", path, code=2)
    want(len(day.do("topology", "assign", path, "--dry-run")["plan"]["members"]) == 4, "a dry run shows every shard")
    want(day.do("status")["nodes"][0]["topology"] is None, "a dry run assigns nothing")
    want(day.do("topology", "assign", path, "--yes")["topology"] == "tp4", "tp4 runs")
    want(day.do("topology", "show")["serving"], "it serves")
    text = day.do("generate", "--model", MODEL, "--prompt", "ROMEO:", "--max-tokens", "30", "--temperature", "0")["text"]
    want(day.do("requests")["heads"][0]["ended"][-1]["tokens"] == 30, "the request is listed as ended")
    return text


def noon(day, daemons):
    """Find the slow node and the cause, exclude it, include it again, and restart everything."""
    found = straggler(day, daemons[1].process.pid)
    want(found["straggler"]["node"] == "pi2" and found["ranks"][0]["node"] == "pi2", f"pi2 is named and listed first: {found['straggler']}")
    day.do("node", "check", "pi2")
    day.do("node", "exclude", "pi2", "--reason", "slow", code=2)
    want(day.do("node", "exclude", "pi2", "--reason", "slow", "--yes")["topology"] == "tp3", "the rest serves")
    want(day.do("node", "show", "pi2")["out"]["reason"] == "slow", "the reason is kept")
    want(day.do("node", "include", "pi2", "--yes")["topology"] == "tp4", "all serve again")
    pids = [daemon.process.pid for daemon in daemons]
    want(day.do("restart", "--rolling", "--yes")["phase"] == "done", "all are restarted")
    want(all(daemon.process.pid != pid for daemon, pid in zip(daemons, pids)), "all processes were replaced")
    until("it serves again", lambda: json.loads(day.raw("topology", "show", "--json").stdout or "{}").get("serving"))
    day.do("node", "cordon", "pi3", "--reason", "new fan", "--yes")
    want(day.do("node", "cordon", "pi3", "--drain", "--reason", "new fan", "--yes")["state"] == "drained", "nothing runs on it")
    day.do("node", "include", "pi3", "--yes")


def evening(day, daemons, folder, text):
    """Cancel a hanging request, then review the day's events and make a support bundle."""
    again = day.do("generate", "--model", MODEL, "--prompt", "ROMEO:", "--max-tokens", "30", "--temperature", "0")
    want(again["text"] == text, "the text is the same as in the morning")
    request = cancelled(day, daemons)
    ended = [one for head in day.do("requests")["heads"] for one in head["ended"]]
    want(any(one["id"] == request and one["reason"] == "cancelled" for one in ended), "the cancellation is recorded")
    events = day.do("events", "--since", "1d")["events"]
    want(any("cancel-running: ok" in event["text"] for event in events), "the cancellation is an event")
    day.do("logs", "pi1", "--level", "info")
    bundle = os.path.join(folder, "day.tar.gz")
    want(not day.do("doctor", "--bundle", bundle)["missing"], "nothing is missing")
    with tarfile.open(bundle) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member).read().decode()
            want(SECRET not in content, f"no prompt is in {member.name}")
    daemons[3].process.kill()
    until("a lost node is shown", lambda: day.raw("status", "--json").returncode == 3 or daemons[3].process.poll() is None)
    day.do("doctor", code=day.raw("doctor", "--json").returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", help="folder of brambled and console [default: target/release]")
    options = parser.parse_args()
    if options.programs:
        bramble.RELEASE = os.path.abspath(options.programs)
    addresses = bramble.loopback(4)
    with bramble.Cluster(MODELS) as cluster:
        for index, address in enumerate(addresses):
            settings = "silent_ms = 30000\nstall_ms = 60000\nexclude_after_ms = 0\n"
            cluster.add(f"pi{index + 1}", address, settings=settings, more=("--supervised",))
        supervisor = Supervisor(cluster.daemons)
        supervisor.start()
        try:
            day = Day(cluster.folder)
            text = morning(day, addresses, cluster.folder)
            noon(day, cluster.daemons)
            evening(day, cluster.daemons, cluster.folder, text)
            print(f"{day.count} commands succeeded as expected")
        finally:
            supervisor.ended.set()
            supervisor.join()


if __name__ == "__main__":
    bramble.command(main)
