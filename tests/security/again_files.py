"""Attacks of again.py on files, processes and the machine: secrets at rest, links, `brambled pair`, codes, the unit."""
import os
import re
import signal
import stat
import subprocess
import sys

import bramble
import peer
from again import ADMIN_KEY, CLIENT_KEY, Skipped, expect
from again_wire import refused

PROMPT = "a private prompt 7c0f"
UNPRIVILEGED_UID = 65534


def files_below(folder):
    return [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names]


def at_rest(field):
    """Keys and prompts in files, logs, command lines, environments and reports; modes of files; core dumps"""
    for host in field.hosts:
        field.post(host, "/v1/completions", {"prompt": PROMPT * 4, "max_tokens": 8})
        field.post(host, "/v1/completions", {"prompt": "a"}, headers={"Authorization": "Bearer sk-wrong-key-9"})
    operator = field.peer(peer.OPERATOR)
    generate = peer.number(6) + peer.number(0) + peer.text(PROMPT)
    for body in (generate, peer.REPORT):
        try:
            operator.ask(body)
        except (peer.Refused, OSError):
            break
    derived = [field.psk(role).hex() for role in peer.ROLES]
    secrets = {"the secret": field.secret.hex(), "a key of the API": CLIENT_KEY, "an operator's key of the API": ADMIN_KEY, "a wrong key": "sk-wrong-key-9", "a prompt": PROMPT,
               **{f"the key of role {role}": key for role, key in zip(peer.ROLES, derived)}}
    raw_secret = {"the secret in bytes": field.secret, **{f"the key of role {role} in bytes": bytes.fromhex(key) for role, key in zip(peer.ROLES, derived)}}
    where = {}
    for daemon in field.daemons:
        pid = daemon.process.pid
        for name in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                where[f"{name} of {daemon.name}"] = file.read()
        children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
        for child in children:
            try:
                with open(f"/proc/{child}/cmdline", "rb") as one, open(f"/proc/{child}/environ", "rb") as two:
                    where[f"child of {daemon.name}"] = one.read() + two.read()
            except OSError:
                pass
        where[f"log of {daemon.name}"] = daemon.text().encode()
        for path in files_below(daemon.state):
            with open(path, "rb") as file:
                where[path] = file.read()
    nodes = ",".join(daemon.address for daemon in field.daemons[:2])
    for command in (("status",), ("logs", field.daemons[0].address), ("settings", field.daemons[0].address), ("doctor",)):
        run = subprocess.run([bramble.program("console"), *command, "--nodes", nodes, "--key", field.key, "--json"], capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        where[f"console {command[0]}"] = run.stdout + run.stderr
    found = [f"{what} in {place}" for place, data in where.items() for what, secret in secrets.items() if secret.encode() in data]
    found += [f"{what} in {place}" for place, data in where.items() for what, secret in raw_secret.items() if secret in data]
    expect(not found, "; ".join(found))
    modes = {path: stat.S_IMODE(os.stat(path).st_mode) for daemon in field.daemons for path in files_below(daemon.state)}
    private = {path: mode for path, mode in modes.items() if mode & 0o077 and re.search(r"key|pair|kv", os.path.basename(path) + os.path.basename(os.path.dirname(path)))}
    expect(not private, f"others can read {private}")
    writable = {path: oct(mode) for path, mode in modes.items() if mode & 0o022}
    expect(not writable, f"others can write {writable}")
    readable = sum(bool(mode & 0o004) for mode in modes.values())
    dumps = set()
    for daemon in field.daemons:
        with open(f"/proc/{daemon.process.pid}/limits") as file:
            dumps |= {line.split()[4] for line in file if line.startswith("Max core file size")}
    # A daemon must refuse keys that others can read.
    os.chmod(field.key, 0o644)
    run = subprocess.run([bramble.program("console"), "status", "--nodes", nodes, "--key", field.key], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    os.chmod(field.key, 0o600)
    expect(run.returncode and "chmod 600" in run.stderr + run.stdout, "a key file that others can read is used")
    return f"{len(where)} places without {len(secrets)} secrets; {len(modes)} files of state, {readable} readable by others (the packaged unit has umask 0027), none writable; soft limit of core dumps {'/'.join(dumps)}"


def links(field):
    """S13: links in the model folder towards the key: reading, naming, hashing and deleting through them"""
    link = os.path.join(field.models, "key.gguf")
    os.symlink(field.key, link)
    told = []
    try:
        for role in (peer.OPERATOR, peer.NODE):
            for name, body in (("read", peer.MODELS + peer.number(5) + peer.text("key.gguf") + peer.number(0)), ("identify", peer.number(2) + peer.text("key.gguf"))):
                try:
                    _, answer = field.peer(role).ask(body)
                    data = answer.data
                except (peer.Refused, OSError) as reason:
                    data = str(reason).encode()
                    told.append(f"{name}: refused")
                expect(field.secret.hex().encode() not in data, f"{name} with role {role} returns the cluster's secret")
        for name in ("../cluster.key", "/etc/passwd", "..", "a/../../cluster.key", "bard-q8_0.gguf/..", "./bard-q8_0.gguf", "bard-q8_0.gguf\0"):
            for variant, more in ((5, peer.number(0)), (2, b""), (1, b"\0"), (7, b"")):
                refused(lambda: field.peer(peer.OPERATOR).ask(peer.MODELS + peer.number(variant) + peer.text(name) + more), f"request {variant} for {name!r}")
                told.append(name)
    finally:
        os.remove(link)
    expect(os.path.exists(field.key), "the key was deleted")
    return f"{len(told)} requests refused"


SWAP = """
import os, sys, time
folder, victim, until = sys.argv[1], sys.argv[2], time.time() + float(sys.argv[3])
os.setgid(65534); os.setuid(65534)
names, swaps, turn = [os.path.join(folder, name) for name in ("pairing.new", "pairing")], 0, 0
while time.time() < until:
    for name in names:
        turn += 1
        link = os.path.join(folder, "link%d" % (turn % 7))
        try:
            (os.symlink if turn % 3 else os.link)(victim, link)
        except OSError:
            pass
        try:
            os.rename(link, name)
            swaps += 1
        except OSError:
            pass
print(swaps)
"""


def pair_race(field):
    """S8: the daemon's user swaps links into its folder while root runs `brambled pair`"""
    if os.geteuid() != 0:
        raise Skipped("only root can start a process of another user")
    folder, state, victim = os.path.join(field.folder, "race"), os.path.join(field.folder, "race", "state"), os.path.join(field.folder, "race", "roots")
    os.makedirs(state)
    for path in (field.folder, folder):
        os.chmod(path, 0o755)
    os.chown(state, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    with open(victim, "w") as file:
        file.write("root's")
    os.chmod(victim, 0o600)
    seconds, runs = (3 if field.is_short else 30), 0
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, state, victim, str(seconds)], stdout=subprocess.PIPE, text=True)
    while swapping.poll() is None:
        subprocess.run([bramble.program("brambled"), "--state", state, "pair"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        runs += 1
        status = os.stat(victim)
        with open(victim) as file:
            is_same = file.read() == "root's"
        if status.st_uid or status.st_mode & 0o077 or not is_same:
            swapping.send_signal(signal.SIGKILL)
        expect(status.st_uid == 0 and not status.st_mode & 0o077 and is_same, f"the victim belongs to {status.st_uid} after {runs} runs")
    swaps = swapping.stdout.read().strip()
    expect(int(swaps or 0) > 0, "the other user swapped nothing")
    return f"{runs} runs of `brambled pair`, {swaps} swaps; the file is root's"


def codes(field):
    """S19: guesses of a pairing code: five from one address, none after it, and the key stays unknown"""
    address = bramble.loopback(1)[0]
    daemon = field.cluster.add("pi7", address, settings=f'mdns = false\nhttp = "off"\nkey_file = "{field.folder}/new.key"\n')
    try:
        run = subprocess.run([bramble.program("brambled"), "--config", daemon.config, "--state", daemon.state, "pair", "--json"], capture_output=True, text=True, check=True,
                             stdin=subprocess.DEVNULL)
        code = re.search(r"\d{4}-\d{4}", run.stdout)[0]
        wrong, told = "0000-0000" if code != "0000-0000" else "1111-1111", []
        adopt = lambda guess: subprocess.run([bramble.program("console"), "key", "adopt", address, "--code", guess, "--key", field.key, "--json"], capture_output=True, text=True,
                                             timeout=30, stdin=subprocess.DEVNULL)
        for _ in range(7):
            run = adopt(wrong)
            expect(run.returncode != 0, "a wrong code adopts the node")
            told.append((re.findall(r'"code": ?"(\w+)"', run.stdout) or [run.stdout[:60] + run.stderr[:60]])[0])
        expect(told[:5] == [told[0]] * 5 and told[5] == told[6] != told[0], f"the answers were {told}")
        run = adopt(code)
        expect(run.returncode != 0, "the address may go on after five wrong codes")
        expect(not os.path.exists(f"{field.folder}/new.key"), "the node has a key")
        mode = stat.S_IMODE(os.stat(os.path.join(daemon.state, "pairing")).st_mode)
        expect(mode == 0o600, f"the code has mode {mode:o}")
    finally:
        daemon.stop()
        field.cluster.daemons.remove(daemon)
    return f"answers: 5 {told[0]}, then {told[5]}, also to the right code"


def unit(field):
    """The shipped unit's exposure (systemd-analyze security, offline)"""
    path = os.path.join(bramble.ROOT, "systemd", "brambled.service")
    try:
        run = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", path], capture_output=True, text=True, timeout=60)
    except FileNotFoundError as reason:
        raise Skipped("systemd-analyze is missing") from reason
    score = re.search(r"exposure level for brambled.service: ([\d.]+)", run.stdout)
    if not score:
        raise Skipped(f"systemd-analyze: {(run.stderr or run.stdout)[-200:]}")
    open_points = re.findall(r"^✗ +(\S+)", run.stdout, re.M)
    expect(float(score[1]) <= 2.0, f"exposure {score[1]}")
    return f"exposure {score[1]}; open: {' '.join(open_points)}"


ATTACKS = {"secrets-at-rest": at_rest, "S13-links": links, "S8-pair-race": pair_race, "S19-codes": codes, "unit": unit}
