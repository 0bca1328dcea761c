#!/usr/bin/env python3
"""The findings S1 to S19 of the security review attacked again, with other inputs than the recorded ones, and what lies
beyond them: the handshake, impostors of nodes, links, files, logs. Three real daemons on loopback: pi1 and pi2 with a
cluster key and keys for the API, serving the demo model as two replicas, and pi3 without any key.

usage: tests/security/again.py [--short] [--only NAME,..] [--list] [--programs DIR]

Each attack prints PASS or FAIL with what was measured; SKIPPED if this machine cannot run it. After each one every
daemon must still be the same process, serve, and use at most 128 MB more than idle. --short takes about 90 s next to 40
other processes on two cores. Exit code 1 after a FAIL. Times are judged generously, because the machine may be shared.

cargo build --release --locked --workspace
"""
import argparse
import http.client
import json
import os
import shutil
import sys
import tempfile
import time
import traceback

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(FOLDER, "..", "python"), os.path.join(FOLDER, "..", "serve")]
import bramble
import peer
import tenancy

DEMO = os.path.join(bramble.ROOT, "packaging", "demo", "bard-q8_0.gguf")
CLIENT_KEY, ADMIN_KEY = "sk-client-0123456789abcdef", "sk-admin-0123456789abcdef"
MORE_MAX = 128 << 20
# A client next to an attack gets its token within this, on a machine that others use, too.
SERVED_SECONDS = 10


class Skipped(Exception):
    """The machine lacks something."""


class Hole(Exception):
    """The attack succeeded."""


def expect(is_so, what):
    if not is_so:
        raise Hole(what)


class Field:
    """The daemons, their keys and addresses."""

    def __init__(self, cluster, folder, is_short):
        self.cluster, self.folder, self.is_short = cluster, folder, is_short
        self.models, self.key = os.path.join(folder, "models"), os.path.join(folder, "cluster.key")
        os.makedirs(self.models)
        shutil.copy(DEMO, self.models)
        bramble.console("key", "new", "--key", self.key)
        with open(self.key) as file:
            self.secret = bytes.fromhex(next(line.split()[1] for line in file if line.startswith("secret ")))
        keys = f'key_file = "{self.key}"\napi_keys = ["{CLIENT_KEY}"]\noperator_api_keys = ["{ADMIN_KEY}"]\n'
        addresses = bramble.loopback(3)
        self.hosts = [address.split(":")[0] for address in addresses]
        for index, address in enumerate(addresses):
            cluster.add(f"pi{index + 1}", address, settings="mdns = false\nexclude_slow_ms = 0\n" + (keys if index < 2 else ""))
        self.daemons = cluster.daemons
        self.assign()
        bramble.generate(self.daemons[2:], "bard-q8_0.gguf", "ROMEO:", 1)
        for host in self.hosts:
            self.until(lambda: self.get(host, "/health")[0] == 200, "a node does not serve")
            self.post(host, "/v1/completions", {"prompt": "a", "max_tokens": 2, "response_format": {"type": "json_object"}})
        self.processes = [daemon.process.pid for daemon in self.daemons]
        self.idle = [tenancy.status(pid, "VmRSS") for pid in self.processes]

    def assign(self):
        bramble.generate(self.daemons[:2], "bard-q8_0.gguf", "ROMEO:", 1, "--topology", "dp2-tp1", "--key", self.key)

    def psk(self, role):
        return peer.psk_of(self.secret, role)

    def peer(self, role, index=0, **more):
        return peer.Peer(self.hosts[index], self.psk(role), role, **more).open()

    def role_file(self, role):
        """A key file of a role."""
        path = os.path.join(self.folder, f"{role}.key")
        with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{role} {self.psk({'viewer': peer.VIEWER, 'operator': peer.OPERATOR}[role]).hex()}\n")
        return path

    def headers(self, host):
        return {"Authorization": f"Bearer {CLIENT_KEY}"} if host in self.hosts[:2] else {}

    def request(self, host, method, path, body=None, headers=None, patience=60):
        """Status, headers and body; status 0 if the connection broke or no answer came in time."""
        payload = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(host, 9980, timeout=patience)
        try:
            connection.request(method, path, payload, {"Content-Type": "application/json", **self.headers(host), **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict((name.lower(), value) for name, value in answer.getheaders()), answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, {}, str(error).encode()
        finally:
            connection.close()

    def get(self, host, path, **more):
        return self.request(host, "GET", path, **more)

    def post(self, host, path, body, **more):
        return self.request(host, "POST", path, body, **more)

    def served(self, host):
        """Seconds of a well-behaved request for a token."""
        begin = time.monotonic()
        status, _, body = self.post(host, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 1})
        expect(status == 200, f"a harmless request gets {status}: {body[:200]}")
        return time.monotonic() - begin

    def until(self, is_so, what, seconds=30):
        deadline = time.monotonic() + seconds
        while not is_so():
            expect(time.monotonic() < deadline, what)
            time.sleep(0.05)

    def peaks(self):
        """Starts to measure the peak memory of the daemons; returns a function with the growth of each in MB."""
        for pid in self.processes:
            tenancy.forget_peak(pid)
        before = [tenancy.status(pid, "VmRSS") for pid in self.processes]
        return lambda: [max(0, tenancy.status(pid, "VmHWM") - old) >> 20 for pid, old in zip(self.processes, before)]

    def logs(self):
        return "\n".join(daemon.text() for daemon in self.daemons)

    def check(self):
        """All daemons are the same processes, serve, and have their memory back."""
        for daemon, pid, idle in zip(self.daemons, self.processes, self.idle):
            last = daemon.text().splitlines()[-1:]
            expect(daemon.process.poll() is None and daemon.process.pid == pid, f"{daemon.name} ended: {last}")
            more = tenancy.status(pid, "VmRSS") - idle
            expect(more <= MORE_MAX, f"{daemon.name} keeps {more >> 20} MB")
            expect("panicked" not in daemon.text(), f"{daemon.name} panicked: {[line for line in daemon.text().splitlines() if 'panicked' in line][:1]}")
        for host in self.hosts:
            self.until(lambda: self.get(host, "/health", patience=5)[0] == 200, f"{host} does not serve any more", 60)
        return max(self.served(host) for host in self.hosts)


def restore(field):
    """After a hole: the daemons run and serve again."""
    for daemon in field.daemons:
        if daemon.process.poll() is not None:
            daemon.stop()
            daemon.start()
    field.processes = [daemon.process.pid for daemon in field.daemons]
    field.assign()
    bramble.generate(field.daemons[2:], "bard-q8_0.gguf", "ROMEO:", 1)


def run(field, attacks):
    failed = 0
    for name, attack in attacks:
        begin = time.monotonic()
        try:
            told, served = attack(field), field.check()
            verdict, told = "PASS", f"{told}; then a token in {1e3 * served:.0f} ms"
        except Skipped as reason:
            verdict, told = "SKIPPED", str(reason)
        except (Hole, peer.Refused, OSError, bramble.Failed) as error:
            verdict, told = "FAIL", f"{type(error).__name__}: {error}"[:600]
            if not isinstance(error, Hole):
                traceback.print_exc()
        print(f"{verdict:7} {name:24} {time.monotonic() - begin:5.1f} s  {told}", flush=True)
        if verdict == "FAIL":
            failed += 1
            restore(field)
    return failed


def main():
    import again_files
    import again_http
    import again_keys
    import again_pulls
    import again_wire

    attacks = {**again_http.ATTACKS, **again_pulls.ATTACKS, **again_wire.ATTACKS, **again_keys.ATTACKS, **again_files.ATTACKS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer inputs and shorter waits, for every change")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(attacks), metavar="NAME,..")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--programs", help="folder of brambled and console [default: target/release]", metavar="DIR")
    arguments = parser.parse_args()
    if arguments.list:
        return print("\n".join(f"{name:24} {attack.__doc__.splitlines()[0]}" for name, attack in attacks.items()))
    if arguments.programs:
        bramble.RELEASE = os.path.abspath(arguments.programs)
    if unknown := set(arguments.only) - set(attacks):
        parser.error(f"unknown attack {', '.join(sorted(unknown))}; see --list")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bramble-again-") as folder, bramble.Cluster(os.path.join(folder, "models")) as cluster:
        field = Field(cluster, folder, arguments.short)
        failed = run(field, [(name, attacks[name]) for name in arguments.only])
    print(f"{len(arguments.only)} attacks, {failed} succeeded, {time.monotonic() - begin:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    # The attacks import this module by its name.
    sys.modules["again"] = sys.modules["__main__"]
    bramble.command(main)
