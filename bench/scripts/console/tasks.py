#!/usr/bin/env python3
"""Ten tasks of an operator, done in a terminal as the documents describe them: prints the number of key presses, and the
seconds from the first key to the result on the screen. Nothing is typed ahead of what the screen shows, and no time is
added for reading.

cargo build --release --locked --workspace && bench/scripts/console/tasks.py [--only NAME] [--json]

Three or four daemons on loopback addresses with the demo model; tmux. The first task, the first answer on three fresh
machines, is measured by packaging/quick-start-test.sh.
"""
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
import paths  # noqa: F401
import bramble
from rolling import Supervisor
from stopper import Stopper

DEMO = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
# A text longer than any task takes.
LONG = {"prompt": "ROMEO:", "max_tokens": 400, "stream": True, "temperature": 1.0, "seed": 3}
SIZE = ("120", "40")


class Terminal:
    """A shell in tmux; counts the keys pressed."""

    def __init__(self, folder, programs):
        self.server = f"bramble-tasks-{os.getpid()}"
        environment = {"HOME": folder, "PATH": f"{programs}:/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8", "PS1": "$ "}
        command = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), "tmux", "-L", self.server, "-f", "/dev/null"]
        subprocess.run([*command, "new-session", "-d", "-x", SIZE[0], "-y", SIZE[1], "sh"], check=True)
        self.keys, self.began = 0, None

    def tmux(self, *arguments):
        return subprocess.run(["tmux", "-L", self.server, *arguments], check=True, capture_output=True, text=True).stdout

    def press(self, *names):
        """Presses keys by their tmux names."""
        self.began = self.began or time.monotonic()
        for name in names:
            self.keys += 1
            self.tmux("send-keys", name)

    def type(self, text):
        """Types a text."""
        self.began = self.began or time.monotonic()
        self.keys += len(text)
        self.tmux("send-keys", "-l", text)

    def run(self, command):
        """Types a command and Enter."""
        self.type(command)
        self.press("Enter")

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def wait(self, pattern, patience=60):
        """Waits until the screen matches; returns the match."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            shown = self.screen()
            found = re.search(pattern, shown, re.S)
            if found:
                return found
            time.sleep(0.05)
        sys.exit(f"{pattern!r} does not appear:\n{shown}")

    def close(self):
        subprocess.run(["tmux", "-L", self.server, "kill-server"], capture_output=True)


class Request(threading.Thread):
    """A streamed completion over HTTP."""

    def __init__(self, address, body=None):
        super().__init__(daemon=True)
        self.host, self.body, self.outcome = address.split(":")[0], body or LONG, None
        self.is_streaming = threading.Event()
        self.start()

    def run(self):
        try:
            link = http.client.HTTPConnection(self.host, 9980, timeout=120)
            link.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
            answer = link.getresponse()
            while answer.readline():
                self.is_streaming.set()
            self.outcome = "ended"
        except (OSError, http.client.HTTPException) as error:
            self.outcome = str(error)


class Load:
    """Requests, one after the other, until `end`."""

    def __init__(self, address):
        self.address, self.is_over = address, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.is_over.is_set():
            Request(self.address).join()

    def end(self):
        self.is_over.set()


class Rig:
    """Daemons, a saved cluster `home` of the first three, and a shell."""

    def __init__(self, cluster, folder, count=3, members=3):
        addresses = bramble.loopback(count)
        self.daemons = [cluster.add(f"pi{number + 1}", address, more=("--supervised",)) for number, address in enumerate(addresses)]
        self.addresses = addresses
        self.terminal = Terminal(folder, bramble.RELEASE)
        self.set_up = lambda *arguments: subprocess.run(
            [bramble.program("console"), *arguments],
            check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={"HOME": folder, "PATH": "/usr/bin:/bin"},
        ).stdout
        self.nodes = ",".join(addresses[:members])


def main():
    parser = bramble.parser(__doc__)
    parser.add_argument("--only", help="run one task")
    arguments = parser.parse_args()
    bramble.end_on_signals()
    found = []
    for task in TASKS:
        name = task.__name__
        if arguments.only not in (None, name):
            continue
        folder = tempfile.mkdtemp(prefix="bramble-tasks-")
        models = os.path.join(folder, "models")
        os.makedirs(models)
        for copy in ("bard-q8_0.gguf", "second-q8_0.gguf"):
            shutil.copy(DEMO, os.path.join(models, copy))
        try:
            with bramble.Cluster(models) as cluster:
                keys, seconds = task(cluster, folder)
        finally:
            subprocess.run(["tmux", "-L", f"bramble-tasks-{os.getpid()}", "kill-server"], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)
        found.append({"task": name, "keys": keys, "seconds": round(seconds, 1)})
        if not arguments.json:
            print(f"{name:24} {keys:4} keys {seconds:6.1f} s", flush=True)
    if arguments.json:
        print(json.dumps(found))


def rig(cluster, folder, count=3):
    """Three members that serve the demo model, and a saved cluster."""
    made = Rig(cluster, folder, count)
    made.set_up("cluster", "add", "home", made.nodes)
    made.set_up("run", "bard", "ROMEO:", "--max-tokens", "3", "--yes")
    return made


def result(made):
    """Key presses, and seconds until now."""
    return made.terminal.keys, time.monotonic() - made.terminal.began


def swap_model(cluster, folder):
    made = rig(cluster, folder)
    shell = made.terminal
    shell.run("console")
    shell.wait("tokens/s")
    shell.press("8")
    shell.wait("second-q8_0")
    while not re.search("▸ *second-q8_0", shell.screen()):
        shell.press("Down")
        time.sleep(0.1)
    shell.press("Enter")
    shell.wait("is replaced by")
    shell.press("Enter")
    shell.wait(r"bramble [^\n]*second-q8_0[^\n]*(ready|serving)\n")
    return result(made)


def confirmed(made, command, outcome):
    """Runs a command that asks, answers yes, and waits for its outcome."""
    made.terminal.run(command)
    made.terminal.wait(r"\[y/N\]")
    made.terminal.run("y")
    made.terminal.wait(outcome)
    return result(made)


def add_node(cluster, folder):
    made = rig(cluster, folder, 4)
    return confirmed(made, f"console node add {made.addresses[3]}", "pi4 joined")


def replace_node(cluster, folder):
    made = rig(cluster, folder, 4)
    made.daemons[2].stop()
    return confirmed(made, f"console node replace pi3 {made.addresses[3]}", "pi4 replaced pi3")


@contextlib.contextmanager
def slowed(made, stop_ms, every_ms):
    """Stops the second node for a part of every period."""
    stopper = Stopper(made.daemons[1].process, stop_ms, every_ms)
    stopper.start()
    try:
        yield
    finally:
        stopper.end()


def find_slow_node(cluster, folder, *further):
    """`further`: keys pressed then, each with the text to wait for."""
    made = rig(cluster, folder)
    load = Load(made.addresses[0])
    try:
        with slowed(made, 4, 12):
            made.terminal.run("console")
            made.terminal.wait(r"pi2 delays \d+ %")
            for key, text in further:
                made.terminal.press(key)
                made.terminal.wait(text)
            return result(made)
    finally:
        load.end()


def why_is_it_slow(cluster, folder):
    return find_slow_node(cluster, folder, ("3", "pi2 .*% of their time"))


def roll_restart(cluster, folder):
    made = rig(cluster, folder)
    shell, supervisor = made.terminal, Supervisor(cluster.daemons)
    supervisor.start()
    try:
        shell.run("console")
        shell.wait("3 of 3 connected")
        shell.press("R")
        shell.wait("Esc no")
        shell.press("Enter")
        shell.wait("2 of 3", 120)
        shell.wait(r"bramble  tp3[^\n]*(ready|serving)\n", 120)
        return result(made)
    finally:
        supervisor.ended.set()
        supervisor.join()


def stop_runaway_request(cluster, folder):
    made = rig(cluster, folder)
    shell = made.terminal
    # Without a slow node the answer would end before it can be cancelled.
    with slowed(made, 95, 100):
        request = Request(made.addresses[0])
        if not request.is_streaming.wait(30):
            sys.exit(f"no answer begins: {request.outcome}")
        shell.run("console")
        shell.wait("tokens/s")
        shell.press("5")
        shell.wait("decoding")
        shell.press("X")
        shell.wait("Esc no")
        shell.press("Enter")
        request.join(30)
        if request.is_alive():
            sys.exit(f"the request still runs:\n{shell.screen()}")
        # The dialog's text has the word, too.
        shell.wait(r"\A(?!.*Esc no).*cancelled")
        return result(made)


def stretched(recording):
    """Multiplies the times of a recording, so that it lasts an hour."""
    with open(recording) as file:
        first, *lines = file.read().splitlines()
    moments = [json.loads(line) for line in lines]
    factor = 3600e6 / moments[-1]["us"]
    with open(recording, "w") as file:
        file.write(first + "\n")
        for moment in moments:
            moment["us"] = int(moment["us"] * factor)
            file.write(json.dumps(moment, separators=(",", ":")) + "\n")


def watch_an_hour_back(cluster, folder):
    """A recorded session whose times are stretched to an hour."""
    made = rig(cluster, folder)
    shell, recording = made.terminal, os.path.join(folder, "session.rec")
    load = Load(made.addresses[0])
    shell.tmux("send-keys", f"console --record {recording}", "Enter")
    shell.wait("tokens/s")
    time.sleep(20)
    shell.tmux("send-keys", "q")
    shell.wait(r"\n[#$] *\n*$")
    load.end()
    stretched(recording)
    shell.run(f"console replay {recording}")
    shell.wait("REPLAY")
    shell.press("End")
    shell.wait(r"(\S+) of \1")
    shell.press("Home")
    shell.wait(r" 0+:0\d of")
    return result(made)


def chat_with_three_turns(cluster, folder):
    made = rig(cluster, folder)
    shell = made.terminal
    shell.run("console chat bard --max-tokens 40")
    for turn, text in enumerate(["ROMEO:", "JULIET:", "NURSE:"], 1):
        shell.wait(r"> *\n*$", 30)
        shell.run(text)
        shell.wait("(tok/s|tokens/s).*" * turn, 60)
    return result(made)


TASKS = [
    swap_model,
    add_node,
    replace_node,
    find_slow_node,
    why_is_it_slow,
    roll_restart,
    stop_runaway_request,
    watch_an_hour_back,
    chat_with_three_turns,
]

if __name__ == "__main__":
    main()
