"""Paced daemons in network namespaces: what runs on them is real but for the computing, which is a wait of the profile's length.

A machine with few cores has no time for the messages of many nodes. All times are therefore `motion` times as long: waits by the daemons' setting,
the links' rate by the link. What is measured is divided by it again. What a message costs a core is that of the profile as well: a rank waits for
what its messages have not cost yet here."""
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

# Heartbeats of many nodes cost a core more than they tell here.
SETTINGS = "heartbeat_ms = 2000\nsilent_ms = 60000\nstall_ms = 600000\nmdns = false\nthreads = 1\nrecover = false\nexclude_slow_ms = 0\n"
# What a link lets pass at once: as much as passes in this time, so that a timer that comes late costs no rate. A bucket of the usual size would let
# whole messages pass at the machine's speed: a token's are no longer than that.
BURST_S, BURST_LEAST = 120e-6, 1600


def motion_of(nodes):
    """How much slower than reality: each node has a core for itself on a machine of two cores, and half of it is left to others. Lone nodes wait
    for nobody; two would need links that are faster than timers here."""
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


def settings(profile, motion, seed, jitter_ppm=0, speed=1.0, memory_mib=None):
    """The settings of a paced daemon."""
    memory = f"memory_max_mib = {memory_mib}\n" if memory_mib else ""
    paced = f'[paced]\nprofile = "{profile}"\nspeed = {speed!r}\nslow_motion = {float(motion)!r}\njitter_ppm = {jitter_ppm}\nseed = {seed}\n'
    return SETTINGS + memory + paced


def rate(mbit, motion):
    """The rate of a link for `tc`, slowed down."""
    return f"{round(mbit * 1000 / motion)}kbit"


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
    """Half of a small message's round trip between two programs, at rest."""
    address = "10.77.0.2"
    answers = subprocess.Popen([*network.enter(1), sys.executable, "-c", PING, "answer", address], stdout=subprocess.PIPE, text=True)
    try:
        answers.stdout.readline()
        asked = subprocess.run([*network.enter(0), sys.executable, "-c", PING, "ask", address], capture_output=True, text=True, check=True)
        return int(asked.stdout) / 2e3
    finally:
        answers.kill()
        answers.wait()


def quantile(values, share):
    """The smallest value that this share of the values does not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, max(0, -int(-share * len(values) // 1) - 1))]


def network_share(ranks, phase):
    """Share of waiting and wire in the time of all ranks in a phase."""
    times = {name: sum(rank[phase][name] for rank in ranks) for name in ("compute_ms", "wait_ms", "wire_ms", "bubble_ms")}
    whole = times["compute_ms"] + times["wait_ms"] + times["wire_ms"]
    return (times["wait_ms"] + times["wire_ms"]) / whole if whole else 0.0
