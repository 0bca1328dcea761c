"""Further faults, next to those of tests/netns/breakage.py: damaged frames, full disks, short memory, clocks that jump,
restarts and consoles that fight, keys that change, members that stay away or are slow."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(FOLDER, "..", "netns"), os.path.join(FOLDER, "..", "python")]
import bramble
import breakage
import keys
from stopper import Stopper

# Rules in the switch's namespace that overwrite a byte of some frames to and from a node. The receiver accepts them,
# because checksums of frames between local devices are not verified.
DAMAGE = """add table bridge chaos
add chain bridge chaos damage {{ type filter hook forward priority 0; }}
add rule bridge chaos damage iifname "p{node}" ip length > 120 tcp dport 9999 numgen random mod {every} == 0 @th,{bit},8 set 0x55
add rule bridge chaos damage oifname "p{node}" ip length > 120 tcp sport 9999 numgen random mod {every} == 0 @th,{bit},8 set 0x55
"""
# Longest time for a console to end.
CONSOLE_SECONDS = 90
# Longest time until the rest serves without a member that stays away or is slow: exclusion, vote and assignment.
REST_SECONDS = 25


class Harm(breakage.Rig):
    """`bed`: the cluster's keys, memory control groups and clocks; `hold`: factor for the durations of faults."""

    def __init__(self, bed, hold, *more):
        super().__init__(*more)
        self.bed, self.hold = bed, hold

    def sleep(self, least, most):
        time.sleep(self.random.uniform(least, most) * self.hold)

    def state(self, node):
        return self.members[node].state

    # Links

    def corrupt(self):
        """Damages some frames between a node and the others."""
        node = self.any()
        rules = DAMAGE.format(node=node, every=self.random.choice([5, 20, 60]), bit=self.random.randrange(8 * 60, 8 * 100))
        with self.undone(f"frames of pi{node + 1} are damaged", lambda: self.network.do(None, "nft", "delete table bridge chaos")):
            done = subprocess.run([*self.network.enter(), "nft", "-f", "-"], input=rules, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"nft: {done.stderr.strip()}")
            self.sleep(1, 4)

    def deaf_gateway(self):
        """All frames of some members, or of all, to the gateway node are lost; those in the other direction arrive."""
        front = len(self.members)
        nodes = self.random.sample(range(front), self.random.choice([1, front]))
        with self.undone(f"frames of {len(nodes)} members to the gateway node are lost", lambda: [self.reach(node, front) for node in nodes]):
            for node in nodes:
                self.miss(node, front)
            self.sleep(1, 5)

    # Disks

    def wipe(self):
        """Empties the state folder, as a new card does; the folder is a mount, and the key is elsewhere."""
        node = self.any()
        self.end(node)
        for name in os.listdir(self.state(node)):
            path = os.path.join(self.state(node), name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        self.tell(f"the state folder of pi{node + 1} is empty")
        time.sleep(breakage.RESTART_SECONDS)
        self.up(node)

    def full_disk(self):
        """Fills the disk of a node's state folder; half of the times a member is killed meanwhile."""
        node = self.any()
        path = os.path.join(self.state(node), "fills-the-disk")
        with self.undone(f"the disk of pi{node + 1} is full", lambda: os.remove(path)):
            with open(path, "wb") as file:
                try:
                    while True:
                        os.write(file.fileno(), bytes(1 << 16))
                except OSError:
                    pass
            if self.random.random() < 0.5:
                other = self.any()
                self.end(other)
                self.up(other)
            self.sleep(1, 3)

    # Memory

    def pressure(self):
        """Limits a node to about the memory that it uses, so that the kernel evicts pages of its files."""
        node = self.any()
        group = self.bed.groups[node]
        with self.undone(f"the memory of pi{node + 1} is short", lambda: group.limit(self.bed.memory)):
            group.squeeze()
            self.sleep(1, 4)

    def no_memory(self):
        """Another program in a node's control group takes all memory: the kernel kills one of the two."""
        node = self.any()
        group, daemon = self.bed.groups[node], self.members[node]
        self.down(node)
        before = group.kills()
        hog = group.hog(daemon.process.pid)
        try:
            daemon.process.wait(timeout=5)
            self.tell(f"pi{node + 1} is out of memory: the kernel killed it")
        except subprocess.TimeoutExpired:
            self.tell(f"pi{node + 1} is out of memory: the kernel killed {group.kills() - before} other processes")
        finally:
            hog.kill()
            hog.wait()
            group.limit(self.bed.memory)
        if daemon.process.poll() is None:
            self.end(node)
        else:
            daemon.stop()
        self.up(node)

    # Clocks

    def clock(self):
        """The wall clocks of one node or of all jump several times by up to two days, and stay there."""
        count = len(self.members)
        nodes = self.random.sample(range(count), self.random.choice([1, count]))
        for _ in range(self.random.randrange(2, 6)):
            for node in nodes:
                seconds = self.random.choice([-172800, -3600, -2, 2, 3600, 172800]) * self.random.random()
                self.bed.set_clock(node, seconds)
                self.tell(f"the clock of pi{node + 1} is {seconds:.1f} s off")
            self.sleep(0.2, 1)
        if self.random.random() < 0.4:
            node = self.any()
            self.end(node)
            self.up(node)

    # Helpers of a daemon

    def kill_text(self):
        """Kills the child process that reads templates and texts."""
        node = self.any()
        pid = self.members[node].process.pid
        children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        self.tell(f"{len(children)} child processes of pi{node + 1} are killed")
        self.sleep(0.1, 0.5)

    # Operators

    def console(self, *arguments):
        """Starts a console in the background."""
        command = [*self.network.enter(), bramble.program("console"), *arguments, "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=self.bed.environment())

    def addresses(self):
        return ",".join(daemon.address for daemon in self.members)

    def ended(self, console, what):
        """Waits for a console; returns its exit code. One that hangs, or fails without a typed error, is a violation."""
        try:
            out, err = console.communicate(timeout=CONSOLE_SECONDS)
        except subprocess.TimeoutExpired:
            console.kill()
            console.communicate()
            raise breakage.Stuck(f"{what} does not end within {CONSOLE_SECONDS} s") from None
        self.tell(f"{what} ends with {console.returncode}: {(out or err).strip()[:300]}")
        if console.returncode < 0:
            return console.returncode
        if console.returncode:
            try:
                error = json.loads(out.splitlines()[-1])["error"]
                is_typed = bool(error["code"] and error["message"])
            except (ValueError, KeyError, IndexError, TypeError):
                is_typed = False
            if not is_typed:
                raise breakage.Stuck(f"{what} ends with {console.returncode} and no typed error: {out[-300:]}{err[-300:]}")
        return console.returncode

    def keep_up(self, console, strike=None, seconds=CONSOLE_SECONDS):
        """Restarts daemons that end while a console works, as systemd does; calls `strike` once, at a random time."""
        begin, at = time.monotonic(), self.random.uniform(0.1, 6) * self.hold
        nodes = range(len(self.members))
        self.away.update(nodes)
        # Each of them may end at any time, before that is noticed here.
        first = len(self.downs)
        self.downs += [(node, begin, float("inf")) for node in nodes]
        try:
            while console.poll() is None and time.monotonic() < begin + seconds:
                if strike and time.monotonic() > begin + at:
                    strike()
                    strike = None
                for node in nodes:
                    daemon = self.members[node]
                    if daemon.process.poll() is not None:
                        self.was_ended(node)
                        time.sleep(0.2)
                        daemon.process.stdin.close()
                        self.up(node)
                        self.away.add(node)
                time.sleep(0.05)
        finally:
            for node in nodes:
                if self.members[node].process.poll() is not None:
                    self.was_ended(node)
                    self.members[node].stop()
                    self.up(node)
            self.away.clear()
            self.downs[first:first + len(nodes)] = [(node, begin, time.monotonic()) for node in nodes]

    def was_ended(self, node):
        """Records that a node is down, if kill_any has not."""
        if not any(down[0] == node and down[2] is None for down in self.downs):
            self.down(node)

    def kill_any(self):
        node = self.any()
        self.tell(f"SIGKILL to pi{node + 1}")
        # It is started again by keep_up.
        self.down(node)
        self.members[node].process.kill()
        self.members[node].process.wait()

    def rolling(self):
        """A rolling restart, during which another member is killed."""
        console = self.console("restart", "--rolling", "--drain-ms", "300", "--yes", "--nodes", self.addresses())
        self.keep_up(console, self.kill_any)
        self.ended(console, "the rolling restart")
        # A restart that paused at the killed node would continue by itself later.
        try:
            status = bramble.console("restart", "status", "--nodes", self.addresses(), enter=self.network.enter(), is_good=range(10), patience=CONSOLE_SECONDS)
        except subprocess.TimeoutExpired:
            raise breakage.Stuck(f"the rolling restart neither ends nor pauses within {CONSOLE_SECONDS} s") from None
        if status.get("phase") not in (None, "done", "aborted"):
            self.ended(self.console("restart", "abort", "--yes", "--nodes", self.addresses()), "ending the rolling restart")

    def fight(self):
        """Three consoles assign other topologies at the same time; one of them may be killed."""
        layouts = self.random.sample(self.bed.other_layouts, min(3, len(self.bed.other_layouts)))
        consoles = []
        for layout in (layouts * 3)[:3]:
            consoles.append((layout, self.console("generate", "--yes", "--nodes", self.addresses(), "--model", self.bed.model, "--prompt", "a", "--max-tokens", "1", "--topology", layout)))
            self.sleep(0, 0.4)
        if self.random.random() < 0.5:
            self.sleep(0, 0.5)
            self.random.choice(consoles)[1].kill()
        for layout, console in consoles:
            self.ended(console, f"a console that wants {layout}")
        deadline = time.monotonic() + CONSOLE_SECONDS
        while time.monotonic() < deadline:
            console = self.console("generate", "--yes", "--nodes", self.addresses(), "--model", self.bed.model, "--prompt", "a", "--max-tokens", "1", "--topology", self.bed.layout)
            if self.ended(console, f"the operator's assignment of {self.bed.layout}") == 0:
                return
            time.sleep(0.5)
        raise breakage.Stuck("the operator cannot assign the topology after consoles fought")

    # Keys

    def rotate(self):
        """Rotates the key while a member, or the console, is killed; the operator repeats the command until it works."""
        command = ["key", "rotate", "--nodes", f"{self.addresses()},{self.front.address}", "--yes"]
        console = self.console(*command)
        is_console = self.random.random() < 0.3
        time.sleep(self.random.uniform(0, 0.3))
        if is_console:
            console.kill()
        else:
            self.kill_any()
        self.keep_up(console, seconds=CONSOLE_SECONDS)
        code, attempts = self.ended(console, "the rotation"), 1
        while code and attempts < 20:
            console = self.console(*command)
            self.keep_up(console)
            code, attempts = self.ended(console, "the rotation again"), attempts + 1
        if code:
            raise breakage.Stuck(f"the key cannot be rotated in {attempts} attempts")

    def adopt(self):
        """A node without a key is adopted and killed meanwhile, until it has the key."""
        node = self.any()
        self.end(node)
        keys.forget(self.members[node])
        self.up(node)
        for _ in range(10):
            code = keys.pair(self.members[node], self.network.enter(node))
            console = self.console("key", "adopt", self.members[node].address, "--code", code)
            time.sleep(self.random.uniform(0, 0.15))
            self.end(node)
            self.up(node)
            ended = self.ended(console, "the adoption")
            if ended == 0 or keys.has(self.members[node]):
                return
            code = keys.pair(self.members[node], self.network.enter(node))
            if self.ended(self.console("key", "adopt", self.members[node].address, "--code", code), "the adoption again") == 0:
                return
        raise breakage.Stuck(f"pi{node + 1} cannot be adopted")

    # Votes

    def until_rest_serves(self, missing):
        """Waits until the other members serve without a member; returns the seconds."""
        begin = time.monotonic()
        rest = ",".join(daemon.address for node, daemon in enumerate(self.members) if node != missing)
        while time.monotonic() < begin + REST_SECONDS:
            try:
                found = bramble.console("status", "--nodes", rest, enter=self.network.enter(), patience=30)["nodes"]
            except bramble.Failed:
                found = []
            layouts = {(node.get("topology") or {}).get("layout") for node in found}
            serve = [node for node in found if node.get("state") in ("ready", "serving")]
            if serve and self.bed.layout not in layouts:
                return time.monotonic() - begin
            time.sleep(0.2)
        raise breakage.Stuck(f"the rest does not serve without pi{missing + 1} within {REST_SECONDS} s")

    def stay_away(self):
        """A member is away until the others have excluded it by a vote."""
        node = self.any()
        self.end(node)
        try:
            self.tell(f"the rest serves without pi{node + 1} after {self.until_rest_serves(node):.1f} s")
        finally:
            self.up(node)

    def straggle(self):
        """A member is slow until the circuit breaker has excluded it."""
        node = self.any()
        self.tell(f"pi{node + 1} is slow")
        stopper = Stopper(self.members[node].process, 95, 100)
        stopper.start()
        try:
            self.tell(f"the rest serves without the straggler after {self.until_rest_serves(node):.1f} s")
        finally:
            stopper.end()
            self.tell(f"pi{node + 1} is as fast as before")


# Relative frequency of each kind, next to those of breakage.KINDS.
STEADY = {**breakage.KINDS, "corrupt": 4, "deaf_gateway": 3, "full_disk": 3, "pressure": 2, "no_memory": 3, "clock": 3, "kill_text": 1}
KEYED = {"rotate": 3, "adopt": 3}
# Kinds after which the ranks that serve for a while may differ from those before.
MOVING = {"rolling": 3, "fight": 3, "stay_away": 3, "kill": 1, "cut": 1, "hang": 1, "power": 1, "damage": 1}
SLOW = {"straggle": 1}
