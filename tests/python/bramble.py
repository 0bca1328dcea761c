"""Real daemons and consoles for the measuring scripts. A daemon always ends with the script that started it, because
its standard input is a pipe of the script."""
import argparse
import atexit
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
RELEASE = os.path.join(ROOT, "target", "release")
# Limit of every wait, in seconds.
PATIENCE = 300
# Settings of daemons whose speed is measured: a busy machine must not look like a lost node, and no shard is written to
# disk during the first requests, which halved the speed of a node with one core.
QUIET = "silent_ms = 30000\nstall_ms = 60000\npacked_shards = false\n"

# Share of a core that other programs may use during a measurement.
FOREIGN_SHARE = 0.03
TICKS = os.sysconf("SC_CLK_TCK")

# Variant of daemons whose steps are measured: no speculative decoding and no prefix cache.
PLAIN = "--plain"


def program(name):
    """The path of a built program."""
    path = os.path.join(RELEASE, name)
    if not os.path.exists(path):
        sys.exit(f"{path} is missing; build first: cargo build --release --locked --workspace")
    return path


def model(shape, form, folder, context=None, name=None, options=()):
    """The path of a model with a real shape and random weights, made only once; `context`: a context length other than
    the default of 8192; `name`: that of a file made with further options."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name or f'{shape}-{form}'}{f'-{context}' if context else ''}.gguf")
    if not os.path.exists(path):
        print(f"making {os.path.basename(path)}", file=sys.stderr)
        # An incomplete file must not look like a complete one.
        more = [*(["--context", str(context)] if context else []), *options]
        subprocess.run([program("make_model"), shape, form, path + ".part", *more], check=True, stdout=sys.stderr)
        os.rename(path + ".part", path)
    return path


def shape(path):
    """Layers, embedding length and vocabulary of a GGUF file, by the names of its keys."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(path, "rb") as file:

        def number(form):
            return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

        def skip(kind):
            """Skips a value; returns the length of a list."""
            if kind == 8:
                file.seek(number("Q"), os.SEEK_CUR)
            elif kind == 9:
                inner, count = number("I"), number("Q")
                if inner in sizes:
                    file.seek(sizes[inner] * count, os.SEEK_CUR)
                else:
                    for _ in range(count):
                        skip(inner)
                return count
            else:
                file.seek(sizes[kind], os.SEEK_CUR)

        if file.read(4) != b"GGUF":
            sys.exit(f"{path} is not a GGUF file")
        # Skip the version and the number of tensors.
        file.seek(4 + 8, os.SEEK_CUR)
        found = {}
        for _ in range(number("Q")):
            key, kind = file.read(number("Q")).decode(), number("I")
            if kind == 4:
                found[key.split(".")[-1]] = number("I")
            else:
                count = skip(kind)
                if key == "tokenizer.ggml.tokens":
                    found["vocabulary_length"] = count
        return found


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def quantile(values, share):
    """The smallest value that at least this share of the values does not exceed; an IndexError if there are none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def favour():
    """Raises the scheduling priority of this session while the script runs, if the kernel groups by session; needs
    root."""
    path = "/proc/self/autogroup"

    def write(nice):
        with open(path, "w") as file:
            file.write(nice)

    try:
        with open(path) as file:
            told = file.read().split()
        # The file is empty for a process in a control group of its own, which the kernel then schedules as a unit.
        if not told:
            return False
        write("-20")
    except OSError:
        return False
    # The session may be that of a shell, which outlives this script.
    atexit.register(write, told[-1])
    return True


def end_on_signals():
    """Makes SIGTERM and SIGHUP end the script like Ctrl-C, so that everything is cleaned up. A background job of a
    shell would ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


class Daemon:
    """One brambled. `enter`: command prefix, for example taskset or nsenter (which become the daemon); `run`: another
    program; `more`: further arguments; `variant`: options of `bramble-bench daemon`, which is then started instead."""

    def __init__(self, name, address, state, models, enter=(), settings="", run=(), more=(), variant=()):
        self.name, self.address, self.enter, self.run, self.more = name, address, list(enter), list(run), list(more)
        self.daemon = [program("bramble-bench"), "daemon", *variant] if variant else [program("brambled")]
        self.state, self.log = os.path.join(state, name), os.path.join(state, name + ".log")
        self.config, self.models, self.process = os.path.join(state, name + ".toml"), models, None
        os.makedirs(self.state, exist_ok=True)
        with open(self.config, "w") as file:
            file.write(settings)
        # Settings may have keys, which a daemon does not take from a file that everybody can read.
        os.chmod(self.config, 0o640)

    def start(self):
        command = [*self.enter, *(self.run or self.daemon), "--listen", self.address, "--name", self.name, "--exit-with-parent"]
        command += ["--config", self.config, "--state", self.state, "--models", self.models, *self.more]
        # Network namespaces are isolated networks. A program given by `run` may not have the option.
        if not self.run and not self.address.startswith("127."):
            command.append("--insecure")
        with open(self.log, "a") as log:
            begin = log.tell()
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while "listen=" not in self.text(begin):
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended: {self.text(begin)}")
            if time.monotonic() > deadline:
                sys.exit(f"{self.name} does not listen: {self.text(begin)}")
            time.sleep(0.02)

    def text(self, begin=0):
        with open(self.log) as log:
            log.seek(begin)
            return log.read()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()
            self.process.stdin.close()
        self.process = None


class Cluster:
    """Daemons that end, and whose state is removed, with the block."""

    def __init__(self, models):
        self.models, self.daemons = models, []
        self.folder = tempfile.mkdtemp(prefix="bramble-")
        # Cleans up even if this script is killed: its daemons are gone two seconds later.
        remove = 'cat >/dev/null; sleep 2; rm -rf -- "$0"'
        self.guard = subprocess.Popen(["sh", "-c", remove, self.folder], stdin=subprocess.PIPE, start_new_session=True)

    def add(self, name, address, **more):
        daemon = Daemon(name, address, self.folder, self.models, **more)
        self.daemons.append(daemon)
        daemon.start()
        return daemon

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for daemon in self.daemons:
            daemon.stop()
            if kind not in (None, SystemExit, KeyboardInterrupt):
                print(f"--- {daemon.name}\n{daemon.text()}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.guard.kill()
        self.guard.wait()


def loopback(count):
    """Free loopback addresses of an unused network."""
    for number in range(os.getpid(), os.getpid() + 1000):
        hosts = [f"127.{64 + number // 250 % 120}.{1 + number % 250}.{index + 1}" for index in range(count)]
        try:
            for host in hosts:
                socket.create_server((host, 9999)).close()
        except OSError:
            continue
        return [f"{host}:9999" for host in hosts]
    sys.exit("no loopback network is free")


class Failed(Exception):
    """A program that failed, with its exit code and the object that it printed."""

    def __init__(self, name, code, out, err):
        super().__init__(f"{name} ended with {code}: {out or err}")
        self.code, self.out = code, out


def _printed(name, arguments, enter=(), patience=PATIENCE, is_good=(0,)):
    environment = {key: value for key, value in os.environ.items() if key != "BRAMBLE_NODES"}
    command = [*enter, program(name), *arguments, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment, stdin=subprocess.DEVNULL)
    if run.returncode not in is_good:
        raise Failed(name, run.returncode, run.stdout, run.stderr)
    return json.loads(run.stdout)


def console(*arguments, **more):
    """The JSON object that `console ... --json` prints. `is_good`: exit codes that count as success."""
    return _printed("console", arguments, **more)


def bench(*arguments, **more):
    """The JSON object that `bramble-bench ... --json` prints. `is_good`: exit codes that count as success."""
    return _printed("bramble-bench", arguments, **more)


def generate(daemons, model, prompt, tokens, *more, enter=(), context=None, temperature=0):
    """A continuation of a prompt on these daemons, by default the most probable one."""
    nodes = ",".join(daemon.address for daemon in daemons)
    command = ["generate", "--yes", "--nodes", nodes, "--model", model, "--prompt", prompt, "--max-tokens", str(tokens), "--temperature", str(temperature)]
    return console(*command, *(["--context", str(context)] if context else []), *more, enter=enter)


def blamed(address, enter=()):
    """The slow hops and slow nodes in /metrics at an HTTP address."""
    script = f"import urllib.request as u; print(u.urlopen('http://{address}/metrics', timeout=10).read().decode())"
    text = subprocess.run([*enter, sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    hops = re.findall(r'^bramble_slow_hop\{from="(.+?)",to="(.+?)"\} 1$', text, re.M)
    return hops, re.findall(r'^bramble_straggler\{node="(.+?)",', text, re.M)


def letters(count):
    """A prompt of about `count` tokens for models of make_model, in which every letter is a token."""
    return ("abcdefghijklmnopqrstuvwxyz" * (count // 26 + 1))[:count]


# Two best tokens whose log-probabilities are closer than this may swap between rank counts, cuts and machines: int8
# activations change the logits of the demo model by that much (up to 1.2e-2 of the largest, bench/measurements.md).
TIE = 0.2
PROMPTS = ["ROMEO:", "JULIET:\nO", "KING HENRY:\nWhat", "To be, or", "Now is the winter", "Enter the", "My lord, I", "FIRST CITIZEN:\nWe are"]


def agreement(one, other, what):
    """The number of equal ids of a prompt up to the first tie. At a tie of the two best tokens either id is correct;
    once the ids differ the texts diverge, and the rest is not compared. Ends the script if a clear id differs."""
    if one["prompt_token_ids"] != other["prompt_token_ids"]:
        sys.exit(f"{what}: the prompt has different tokens")
    clear = 0
    for step, (expected, found) in enumerate(zip(one["token_ids"], other["token_ids"])):
        best = sorted((candidate["logprob"] for candidate in one["logprobs"][step]), reverse=True)
        is_tie = best[0] - best[1] < TIE
        if expected != found and is_tie:
            return clear
        if expected != found:
            sys.exit(f"{what}: id {found} instead of {expected} in step {step}, whose best tokens are {best[0] - best[1]:.2f} apart")
        clear += not is_tie
    if len(one["token_ids"]) != len(other["token_ids"]):
        sys.exit(f"{what}: {len(other['token_ids'])} ids instead of {len(one['token_ids'])}")
    return clear


def tell(found, as_json):
    """Prints ratios with their targets: objects with what, ratio, wanted, at_least."""
    if as_json:
        return print(json.dumps(found))
    for one in found:
        is_good = one["ratio"] >= one["wanted"] if one["at_least"] else one["ratio"] <= one["wanted"]
        bound = "at least" if one["at_least"] else "at most"
        print(f"  {one['what']:60} {one['ratio']:5.2f}, wanted {bound} {one['wanted']:.2f}{'' if is_good else '  MISSED'}")


def parser(text):
    """A parser with --json, whose help text is printed verbatim."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", action="store_true")
    return found


def busy_seconds():
    """Seconds for which the processors of this machine were busy since boot, and those that its host stole."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = (int(part) for part in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def processor_seconds(pid):
    """Processor seconds of a process and of its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS


def own_seconds(running):
    """Processor seconds of this script, of its children that have ended, and of the given processes."""
    return sum(os.times()[:4]) + sum(processor_seconds(process) for process in running)


def repeated(attempts, measure, running=()):
    """Repeats a measurement, up to `attempts` times in all, while it misses a target, because other programs disturb
    times. `measure` returns a sequence whose last item is the list of missed targets. Returns the last such sequence;
    the list is then empty if every attempt was disturbed (reported on stderr), unless there was only one attempt.
    `running` are the process ids of the daemons that run before and after."""
    is_disturbed = True
    for attempt in range(attempts):
        begin, others = time.monotonic(), busy_seconds() - own_seconds(running)
        found = measure()
        if not found[-1]:
            return found
        share = (busy_seconds() - own_seconds(running) - others) / (time.monotonic() - begin)
        is_disturbed &= share > FOREIGN_SHARE
        print(f"attempt {attempt + 1} of {attempts}, other programs used {100 * share:.0f} % of a core:", *found[-1], sep="\n  ", file=sys.stderr, flush=True)
    if is_disturbed and attempts > 1:
        print("SKIPPED: other programs disturbed every attempt", file=sys.stderr, flush=True)
        found[-1].clear()
    return found


def finish(found, missed, as_json):
    """Ends a script: prints the figures as JSON if asked for and the missed targets on stderr; exit code 1 if there are
    any."""
    if as_json:
        print(json.dumps({**found, "missed": missed}))
    for line in missed:
        print(f"MISSED: {line}", file=sys.stderr)
    sys.exit(bool(missed))


def command(main):
    """Runs a script's main function; a console that fails ends the script with the console's message."""
    end_on_signals()
    try:
        main()
    except Failed as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
