"""Faults of nodes in network namespaces and of their links: processes that end or hang, links that are cut or slow,
connections that are reset, state folders that are damaged. Each fault ends by itself and undoes its effects before it
returns."""
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

# No node has this address: frames to it are lost, which cuts the receiver off without the sender noticing.
NOWHERE = "02:00:00:00:00:99"
# RestartSec of the systemd unit.
RESTART_SECONDS = 1.0
# A daemon that receives SIGTERM drains for at most 20 s.
DRAIN_SECONDS = 30
# Makes the state folder a separate mount in the daemon's view, so that it can become read-only only there.
MOUNT = 'mount --bind "$0" "$0" && exec "$@"'


class Rig:
    """The members of a topology and a gateway node in front of them; `downs`: see Streams."""

    def __init__(self, network, members, front, seed, downs, tell):
        self.network, self.members, self.front, self.downs, self.tell = network, members, front, downs, tell
        self.random, self.away = random.Random(seed), set()

    # Processes

    def down(self, node):
        """Records that a node's process ends now, so that the crash detection ignores it."""
        self.away.add(node)
        self.downs.append((node, time.monotonic(), None))

    def up(self, node):
        self.members[node].start()
        begin = max(index for index, down in enumerate(self.downs) if down[0] == node)
        self.downs[begin] = (node, self.downs[begin][1], time.monotonic())
        self.away.discard(node)
        self.tell(f"pi{node + 1} is restarted")

    def end(self, node, number=signal.SIGKILL):
        """Ends a node's process and waits for it."""
        daemon = self.members[node]
        self.down(node)
        daemon.process.send_signal(number)
        self.tell(f"{number.name} to pi{node + 1}")
        try:
            daemon.process.wait(timeout=DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            raise Stuck(f"pi{node + 1} does not end within {DRAIN_SECONDS} s of {number.name}") from None
        finally:
            daemon.stop()

    def sleep(self, least, most):
        time.sleep(self.random.uniform(least, most))

    def kill(self):
        node = self.any()
        self.end(node)
        time.sleep(self.random.choice([0, RESTART_SECONDS, RESTART_SECONDS, self.random.uniform(0, 5)]))
        self.up(node)

    def kill_two(self):
        one, other = self.pair()
        self.end(one)
        self.sleep(0, 1.5)
        self.end(other)
        self.sleep(0, 1)
        for node in self.random.sample([one, other], 2):
            self.sleep(0, 0.5)
            self.up(node)

    def kill_again(self):
        """Kills a node again, or another one, while the topology is being restored."""
        one, other = self.any(), self.any()
        marks = [os.path.getsize(daemon.log) for daemon in self.members]
        self.end(one)
        self.up(one)
        deadline = time.monotonic() + 5
        while "-> connecting" not in self.members[other].text(marks[other]) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.sleep(0, 0.2)
        self.end(other)
        self.sleep(0, 1)
        self.up(other)

    def terminate(self):
        node = self.any()
        self.end(node, signal.SIGTERM)
        time.sleep(RESTART_SECONDS)
        self.up(node)

    def power(self):
        nodes = list(range(len(self.members)))
        for node in nodes:
            self.down(node)
            self.members[node].process.kill()
        self.tell("all nodes lose power")
        for node in nodes:
            self.members[node].stop()
        self.random.shuffle(nodes)
        for node in nodes:
            self.sleep(0, 1)
            self.up(node)

    def hang(self):
        node = self.any()
        self.tell(f"SIGSTOP to pi{node + 1}")
        self.members[node].process.send_signal(signal.SIGSTOP)
        self.sleep(1, 5)
        self.members[node].process.send_signal(signal.SIGCONT)
        self.tell(f"SIGCONT to pi{node + 1}")

    # State folders

    def damage(self):
        """Changes a file of the state while its node is down."""
        node = self.any()
        self.end(node)
        files = [os.path.join(folder, name) for folder, _, names in os.walk(self.members[node].state) for name in names]
        if files:
            self.change(self.random.choice(sorted(files)))
        self.up(node)

    def change(self, path):
        how, size = self.random.choice(["cut", "flip", "zero", "empty", "remove"]), os.path.getsize(path)
        self.tell(f"{how}: {path}")
        if how == "remove":
            return os.remove(path)
        with open(path, "r+b") as file:
            if how in ("cut", "empty"):
                return file.truncate(self.random.randrange(size) if how == "cut" and size else 0)
            at, length = self.random.randrange(max(1, size)), min(size, 1 if how == "flip" else 512)
            file.seek(min(at, size - length))
            old = file.read(length)
            file.seek(-len(old), os.SEEK_CUR)
            file.write(bytes(byte ^ 4 for byte in old) if how == "flip" else bytes(len(old)))

    def wipe(self):
        """Empties the state folder, as a new SD card does."""
        node = self.any()
        self.end(node)
        shutil.rmtree(self.members[node].state)
        os.makedirs(self.members[node].state)
        self.tell(f"the state folder of pi{node + 1} is empty")
        time.sleep(RESTART_SECONDS)
        self.up(node)

    def read_only(self):
        """Makes the state folder read-only for some seconds, during which the node or another may also be killed."""
        node = self.any()
        self.remount(node, "ro")
        if self.random.random() < 0.5:
            other = self.random.choice([other for other in range(len(self.members)) if other != node])
            self.end(other)
            self.up(other)
        self.sleep(1, 4)
        self.remount(node, "rw")

    def remount(self, node, how):
        """Covers the folder with a read-only mount: a mount in which a file is open for writing, such as a lock, cannot
        become read-only."""
        daemon = self.members[node]
        cover = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"' if how == "ro" else 'umount --lazy "$0"'
        run(["nsenter", "-t", str(daemon.process.pid), "-m", "--", "sh", "-c", cover, daemon.state])
        self.tell(f"the state folder of pi{node + 1} is {how}")

    # Links

    def cut(self):
        """All packets to and from a node are lost; its interface may report the lost link."""
        node, is_noticed = self.any(), self.random.random() < 0.5
        away, back = (["down"], ["up"]) if is_noticed else (["nomaster"], ["master", "br0"])
        with self.undone(f"pi{node + 1} is {'unplugged' if is_noticed else 'cut off'}", lambda: self.port(node, *back)):
            self.port(node, *away)
            self.sleep(1, 5)

    def cut_one_way(self):
        """All packets that a node sends are lost."""
        node = self.any()
        others = [other for other in range(len(self.members) + 1) if other != node]
        with self.undone(f"all frames of pi{node + 1} are lost", lambda: [self.reach(node, other) for other in others]):
            for other in others:
                self.miss(node, other)
            self.sleep(1, 5)

    def cut_pair(self):
        """Two nodes cannot reach each other but all others; one of them may be the gateway node."""
        one, other = self.random.sample(range(len(self.members) + 1), 2)
        pair = [one, other]
        with self.undone(f"{self.name(one)} and {self.name(other)} are cut from each other", lambda: [self.isolate(node, "off") for node in pair]):
            for node in pair:
                self.isolate(node, "on")
            self.sleep(1, 5)

    def cut_pair_one_way(self):
        one, other = self.pair()
        with self.undone(f"frames of pi{one + 1} to pi{other + 1} are lost", lambda: self.reach(one, other)):
            self.miss(one, other)
            self.sleep(1, 5)

    def flap(self):
        """A loose contact."""
        node = self.any()
        with self.undone(f"the link of pi{node + 1} flaps", lambda: self.port(node, "up")):
            for _ in range(self.random.randrange(3, 8)):
                self.port(node, "down")
                self.sleep(0.02, 0.5)
                self.port(node, "up")
                self.sleep(0.02, 0.3)

    def slow(self):
        """Slows a link, and sometimes more: frames are delayed by up to 200 ms and some are dropped."""
        node = self.any()
        with self.undone(f"the link of pi{node + 1} is slow", lambda: self.network.limit(node, self.network.rate, both=True)):
            end = time.monotonic() + self.random.uniform(1, 5)
            while time.monotonic() < end:
                self.network.limit(node, self.random.choice(["1mbit", "5mbit", "20mbit"]), "16kb", "200ms", both=True)
                self.sleep(0.1, 0.5)

    def reset(self):
        """Resets one TCP connection between two members, or all of them: those of their ranks, of their gateways and of
        their stewards."""
        one, other = self.pair()
        found = [connection for connection in self.connections(one) if connection[1].startswith(f"{self.address(other)}:")]
        if not found:
            return self.tell(f"no connection between pi{one + 1} and pi{other + 1}")
        for connection in found if self.random.random() < 0.4 else [self.random.choice(found)]:
            self.kill_connection(one, *connection)

    def reset_all(self):
        """Resets every TCP connection between a node and the others."""
        node = self.any()
        for connection in self.connections(node):
            self.kill_connection(node, *connection)

    # Steps

    def any(self):
        return self.random.randrange(len(self.members))

    def pair(self):
        return self.random.sample(range(len(self.members)), 2)

    def name(self, node):
        return "the gateway node" if node == len(self.members) else f"pi{node + 1}"

    @staticmethod
    def address(node):
        return f"10.77.0.{node + 1}"

    @contextlib.contextmanager
    def undone(self, what, undo):
        self.tell(what)
        try:
            yield
        finally:
            undo()
            self.tell(f"no longer: {what}")

    def port(self, node, *what):
        self.network.do(None, "ip", "link", "set", f"p{node}", *what)

    def isolate(self, node, what):
        self.network.do(None, "ip", "link", "set", "dev", f"p{node}", "type", "bridge_slave", "isolated", what)

    def miss(self, node, other):
        self.network.do(node, "ip", "neigh", "replace", self.address(other), "lladdr", NOWHERE, "dev", "e0", "nud", "permanent")

    def reach(self, node, other):
        self.network.do(node, "ip", "neigh", "del", self.address(other), "dev", "e0")

    def connections(self, node):
        """Local and peer address of each established connection of a node with others."""
        lines = self.network.do(node, "ss", "-Htn", "state", "established").splitlines()
        pairs = [line.split()[2:4] for line in lines if len(line.split()) >= 4]
        return [pair for pair in pairs if pair[0].startswith("10.77.") and pair[1].startswith("10.77.")]

    def kill_connection(self, node, local, peer):
        self.tell(f"the connection {local} - {peer} is reset")
        # ss reports kinds of sockets that cannot be killed, but only after killing this one.
        subprocess.run([*self.network.enter(node), "ss", "-K", "-t", "src", local, "dst", peer], capture_output=True)


class Stuck(Exception):
    """A node that does not end on request."""


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")


# Relative frequency of each kind.
KINDS = {
    "kill": 5, "kill_two": 2, "kill_again": 2, "terminate": 2, "power": 1, "hang": 4,
    "damage": 2, "wipe": 1, "read_only": 1,
    "cut": 3, "cut_one_way": 2, "cut_pair": 4, "cut_pair_one_way": 3, "flap": 2, "slow": 2,
    "reset": 5, "reset_all": 2,
}
