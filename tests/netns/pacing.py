"""Paced daemons in network namespaces: everything is real except the computation, which is a wait as long as the
profile predicts.

A machine with few cores cannot handle the messages of many nodes in real time. All times are therefore stretched by the
factor `motion`: waits by a setting of the daemons, transfers by the rate of the links. Measured times are divided by
it. The CPU cost of a message also comes from the profile: a rank waits for the part of it that was not spent here."""
import contextlib
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble
from network import QUEUE, Network

# Frequent heartbeats of many nodes would take CPU time, and nothing here depends on them.
SETTINGS = "heartbeat_ms = 2000\nsilent_ms = 60000\nstall_ms = 600000\nmdns = false\nthreads = 1\nrecover = false\nexclude_slow_ms = 0\n"
# The bucket of a link holds the bytes that pass in this time, so that a late timer does not reduce the rate. A bucket
# of the usual size would let whole messages pass at the machine's speed: those of a decoded token are no larger.
BURST_S, BURST_LEAST = 120e-6, 1600


def motion_of(nodes):
    """The slow-motion factor: on a machine with two cores each node gets the time of a whole core, half of it spare. A
    single node waits for no peer; with a smaller factor two nodes would need links that are faster than the timers
    here."""
    return float(max(4, nodes)) if nodes > 1 else 1.0


def burst(mbit, motion):
    """The bucket of such a link."""
    return f"{max(BURST_LEAST, round(mbit * 1e6 / motion / 8 * BURST_S))}b"


def model(shape, form, folder):
    """The path of a model with a hole in place of its weights, made once."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"hollow-{shape}-{form}.gguf")
    if not os.path.exists(path):
        part = f"{path}.{os.getpid()}.part"
        subprocess.run([bramble.program("make_model"), shape, form, part, "--hollow"], check=True, stdout=sys.stderr)
        os.rename(part, path)
    return path


def settings(profile, motion, seed, jitter_ppm=0, speed=1.0, memory_mib=None, base=SETTINGS):
    """The settings of a paced daemon."""
    memory = f"memory_max_mib = {memory_mib}\n" if memory_mib else ""
    paced = f'[paced]\nprofile = "{profile}"\nspeed = {speed!r}\nslow_motion = {float(motion)!r}\njitter_ppm = {jitter_ppm}\nseed = {seed}\n'
    return base + memory + paced


@contextlib.contextmanager
def network(mbits, motion, queue=QUEUE):
    """A node behind each of these links, whose rates are slowed down. `queue`: the longest time that a frame waits for
    its link, not slowed down."""
    rate = lambda mbit: f"{round(mbit * 1000 / motion)}kbit"
    with Network(len(mbits), rate(mbits[0]), slow_start=False, burst=burst(mbits[0], motion)) as found:
        for node, mbit in enumerate(mbits):
            found.limit(node, rate(mbit), burst(mbit, motion), queue, both=True)
        yield found


def parser(doc, shape, prompt, tokens, requests):
    """The options that benches of paced nodes share."""
    options = bramble.parser(doc)
    options.add_argument("--shape", default=shape, help="shape name of make_model")
    options.add_argument("--profile", default="pi5")
    options.add_argument("--prompt", type=int, default=prompt)
    options.add_argument("--tokens", type=int, default=tokens)
    options.add_argument("--requests", type=int, default=requests)
    options.add_argument("--exchange", default="q80")
    options.add_argument("--slower", type=float, default=1.0, help="slow all times down by this factor as well, for a busy machine")
    options.add_argument("--models", default=os.path.join(bramble.ROOT, "target", "models"), metavar="DIR")
    return options


PING = """
import socket, sys, time
if sys.argv[1] == "answer":
    server = socket.create_server((sys.argv[2], 9700))
    print("ready", flush=True)
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while (data := peer.recv(64)):
        peer.sendall(data)
else:
    peer = socket.create_connection((sys.argv[2], 9700))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(2000):
        begin = time.perf_counter_ns()
        peer.sendall(bytes(64))
        peer.recv(64)
        times.append(time.perf_counter_ns() - begin)
    print(sorted(times)[len(times) // 2])
"""


def alpha_us(network):
    """Half of the round trip of a small message between two processes on an idle network, in microseconds."""
    address = "10.77.0.2"
    answers = subprocess.Popen([*network.enter(1), sys.executable, "-c", PING, "answer", address], stdout=subprocess.PIPE, text=True)
    try:
        if answers.stdout.readline() != "ready\n":
            sys.exit("the echo server on pi2 does not start")
        asked = subprocess.run([*network.enter(0), sys.executable, "-c", PING, "ask", address], capture_output=True, text=True, check=True, timeout=60)
        return int(asked.stdout) / 2e3
    finally:
        answers.kill()
        answers.wait()


def network_share(ranks, phase):
    """Share of waiting and wire in the time of all ranks in a phase."""
    times = {name: sum(rank[phase][name] for rank in ranks) for name in ("compute_ms", "wait_ms", "wire_ms", "bubble_ms")}
    whole = times["compute_ms"] + times["wait_ms"] + times["wire_ms"]
    return (times["wait_ms"] + times["wire_ms"]) / whole if whole else 0.0
