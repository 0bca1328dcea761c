#!/usr/bin/env python3
"""Nodes in network namespaces around a switch. No namespace has a name: each exists as long as a process in it, which
ends when its standard input, a pipe of this process, closes. So nothing is left behind, however the script ends. As a
command: explains why this machine cannot create them, with exit code 1."""
import json
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

# With this bucket size a link of 1 Gb/s stays full even if timers fire only every 4 ms.
BURST = "128kb"
# Frames that would wait longer for their link are dropped.
QUEUE = "50ms"
SWITCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "switch.py")


def missing():
    """The reason why this machine cannot create such a network; `None` if it can."""
    if os.geteuid() != 0:
        return "needs root"
    for name in ("ip", "tc", "nsenter", "unshare"):
        if not shutil.which(name):
            return f"needs the program {name}"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "p", "type", "veth", "peer", "name", "q"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"this kernel cannot create a network namespace with veth: {tried.stderr.strip()}"


def holder():
    """A process in a new network namespace."""
    # Once `cat` has echoed its input, it is in its namespace.
    process = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"\n")
    process.stdin.flush()
    if process.stdout.readline() != b"\n":
        sys.exit("cannot create a network namespace; this needs root")
    return process


class Network:
    """`nodes` namespaces with one link each to the switch, another namespace, in which consoles run. `slow_start`:
    whether an idle connection falls back to slow start, the kernel's default; a message of 150 kB then takes three more
    round trips. `burst`: the bucket size of a link, in the notation of `tc`."""

    def __init__(self, nodes, rate="1gbit", delay_ms=0.0, slow_start=True, burst=BURST):
        reason = missing()
        if reason:
            sys.exit(f"no network namespaces: {reason}")
        if not 1 <= nodes <= 64:
            sys.exit(f"{nodes} nodes: 1 to 64 are supported")
        self.rate, self.delay_ms, self.slow_start, self.burst, self.userspace = rate, delay_ms, slow_start, burst, None
        self.switch = holder()
        self.nodes = [holder() for _ in range(nodes)]

    def enter(self, node=None):
        """Command prefix that runs a command on a node, or at the switch."""
        holder = self.switch if node is None else self.nodes[node]
        return ["nsenter", "-t", str(holder.pid), "-n", "--"]

    def do(self, node, *command):
        run = subprocess.run([*self.enter(node), *command], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{' '.join(command)}: {run.stderr.strip() or run.stdout.strip()}")
        return run.stdout

    def __enter__(self):
        try:
            for node in [None, *range(len(self.nodes))]:
                # Otherwise every node sends neighbour and router solicitations, which count as bytes on the wire.
                self.do(node, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
                # Without loss, reno behaves like cubic, which Raspberry Pi OS uses but which may not be available here.
                # With bbr, the default of some machines, 8 kB through 50 ms each way took 129 ms instead of 101,
                # because it paces frames.
                self.do(node, "sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=reno")
                if not self.slow_start:
                    self.do(node, "sysctl", "-q", "-w", "net.ipv4.tcp_slow_start_after_idle=0")
                self.do(node, "ip", "link", "set", "lo", "up")
            if self.delay_ms > 0:
                self.through_userspace()
            else:
                self.through_bridge()
        except BaseException:
            self.__exit__()
            raise
        return self

    def through_bridge(self):
        self.do(None, "ip", "link", "add", "br0", "type", "bridge")
        self.do(None, "ip", "addr", "add", "10.77.0.254/24", "dev", "br0")
        self.do(None, "ip", "link", "set", "br0", "up")
        for node, holder in enumerate(self.nodes):
            port = f"p{node}"
            self.do(None, "ip", "link", "add", port, "type", "veth", "peer", "name", "e0", "netns", str(holder.pid))
            self.do(None, "ip", "link", "set", port, "master", "br0", "up")
            self.do(node, "ip", "addr", "add", f"10.77.0.{node + 1}/24", "dev", "e0")
            self.do(node, "ip", "link", "set", "e0", "up")
            if self.rate != "0":
                self.limit(node, self.rate, self.burst, both=True)

    def limit(self, node, rate, burst=BURST, latency=QUEUE, both=False):
        """Limits the rate at which a node sends, with `both` also the rate at which it receives. Frames that would wait
        for more than `latency` are dropped."""
        for place, device in [(node, "e0"), *([(None, f"p{node}")] if both else [])]:
            self.do(place, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", burst, "latency", latency)

    def through_userspace(self):
        """This kernel cannot delay frames: a userspace process does, which holds one end of a tap device of each node
        and of the console's namespace."""
        holders = [self.switch, *self.nodes]
        command = [sys.executable, SWITCH, "--delay-ms", str(self.delay_ms), "--rate", self.rate, *(str(holder.pid) for holder in holders)]
        self.userspace = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.userspace.stdout.readline() != "up\n":
            sys.exit("the userspace switch does not start")
        for node in [None, *range(len(self.nodes))]:
            address = "10.77.0.254/24" if node is None else f"10.77.0.{node + 1}/24"
            self.do(node, "ip", "addr", "add", address, "dev", "e0")
            self.do(node, "ip", "link", "set", "e0", "up")

    def counters(self, node):
        """Bytes and packets that a node has sent and received over its link."""
        found = json.loads(self.do(node, "ip", "-j", "-s", "link", "show", "dev", "e0"))[0]["stats64"]
        return {way: (found[way]["bytes"], found[way]["packets"]) for way in ("rx", "tx")}

    def losses(self):
        """TCP segments retransmitted by all nodes, and frames dropped by the queues of all links."""
        again = dropped = 0
        for node in range(len(self.nodes)):
            names, values = [line.split() for line in self.do(node, "cat", "/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
            again += int(values[names.index("RetransSegs")])
            for place, device in ((node, "e0"), (None, f"p{node}")):
                shown = self.do(place, "tc", "-s", "qdisc", "show", "dev", device)
                dropped += sum(int(count) for count in re.findall(r"dropped (\d+)", shown))
        return again, dropped

    def add_daemons(self, cluster, settings="", pin=False):
        """Starts a daemon on every node; `settings` of all, or a list with those of each."""
        cores = sorted(os.sched_getaffinity(0))
        for node in range(len(self.nodes)):
            core = ["taskset", "-c", str(cores[node % len(cores)])] if pin else []
            cluster.add(f"pi{node + 1}", f"10.77.0.{node + 1}:9999", enter=[*self.enter(node), *core],
                        settings=settings if isinstance(settings, str) else settings[node], variant=[bramble.PLAIN])

    def wait(self):
        """Waits until Ctrl-C, or until the network is gone."""
        while self.switch.poll() is None:
            time.sleep(0.2)

    def __exit__(self, *_):
        for process in [self.userspace, *self.nodes, self.switch]:
            if process:
                process.stdin.close()
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    print(missing() or "network namespaces are supported")
    sys.exit(missing() is not None)
