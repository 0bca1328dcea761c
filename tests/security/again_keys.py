"""Attacks of again.py on the change of keys: revoked keys (S16), and impostors of nodes (S2)."""
import os
import re
import socket
import subprocess
import threading
import time

import bramble
import peer
from again import expect
from again_http import parallel
from again_wire import refused
from peer import KEY, NODE, NONE, OPERATOR, OWNER, PAIRING, REPORT, VIEWER, WATCH, Peer, Refused, number, preamble, text


def revocation(field):
    """S16: after a rotation without grace, sessions, begun handshakes and watches of the old key end"""
    key = os.path.join(field.folder, "rotated.key")
    node_key = os.path.join(field.folder, "rotated-node.key")
    bramble.console("key", "new", "--key", key)
    with open(key) as file, open(os.open(node_key, os.O_CREAT | os.O_WRONLY, 0o600), "w") as out:
        text_ = file.read()
        out.write(text_)
    old = bytes.fromhex(re.search(r"secret ([0-9a-f]{64})", text_)[1])
    address = bramble.loopback(1)[0]
    daemon = field.cluster.add("pi8", address, settings=f'key_file = "{node_key}"\nmdns = false\nhttp = "off"\n')
    try:
        host = address.split(":")[0]
        dial = lambda role: Peer(host, peer.psk_of(old, role), role)
        sessions = {role: dial(role).open() for role in (VIEWER, OPERATOR, NODE, OWNER)}
        for session in sessions.values():
            session.send(WATCH)
            session.read()
        begun = dial(OPERATOR).greet()
        begun.short(begun.first())
        begun.second(begun.reply())
        bramble.console("key", "rotate", "--key", key, "--nodes", address, "--grace", "0", "--yes")
        begin = time.monotonic()
        ends = {}
        for role, session in sessions.items():
            session.sock.settimeout(5)
            try:
                while True:
                    session.read()
            except (Refused, OSError) as reason:
                ends[role] = time.monotonic() - begin
                expect("timed out" not in str(reason), f"the session of role {role} stays open")

        def late():
            begun.write(b"")
            begun.read()
            return begun.ask(REPORT)

        refused(late, "a handshake begun with the old key")
        for role in sessions:
            refused(lambda: dial(role).open(), f"the old key of role {role}")
        log = daemon.text()
        expect(old.hex() not in log and open(key).read().split("secret ")[1][:64] not in log, "a secret is in the log")
    finally:
        daemon.stop()
        field.cluster.daemons.remove(daemon)
    return f"4 sessions ended within {1e3 * max(ends.values()):.0f} ms, old keys refused"


class Impostor:
    """Listens where a node should and plays one with a key, or without; keeps all messages that it can read."""

    def __init__(self, psk, own):
        self.psk, self.own, self.heard, self.reason = psk, own, [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                sock, _ = self.listener.accept()
                sock.settimeout(5)
                if self.psk:
                    one = peer.answer(sock, self.psk, self.own)
                    self.heard.append(one.hello)
                    one.write(number(0) + text("pi1") + text("0.1.0") + number(1) + text("m") + number(0))
                    while True:
                        self.heard.append(one.read())
                else:
                    self.heard.append(peer.exactly(sock, 16))
                    sock.sendall(self.own)
                    while part := sock.recv(65536):
                        self.heard.append(part)
            except (Refused, OSError) as reason:
                self.reason.append(str(reason))
                if self.listener.fileno() < 0:
                    return


def impostors(field):
    """S2: `key rotate` and a prompt towards listeners without a key, and towards holders of an operator's key"""
    listeners = {"no key": (None, preamble(NONE, links=0)), "operator's key": (field.psk(OPERATOR), preamble(KEY)),
                 "operator's key, version 4": (field.psk(OPERATOR), preamble(KEY, highest=4))}
    if not field.is_short:
        listeners |= {"no key, version 4": (None, preamble(NONE, highest=4, links=0)), "viewer's key, version 4": (field.psk(VIEWER), preamble(KEY, highest=4)),
                      "pairing": (None, preamble(PAIRING))}
    told = parallel(lambda item: lure(field, *item), list(listeners.items()), 6)
    return "; ".join(told)


def lure(field, name, listener):
    """Starts an impostor and leads the owner's console to it."""
    psk, own = listener
    key = os.path.join(field.folder, f"owner of {name}.key".replace(" ", "-"))
    with open(field.key) as file, open(os.open(key, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as out:
        out.write(file.read())
    impostor, codes = Impostor(psk, own), []
    for command in (("key", "rotate", "--yes"), ("generate", "--prompt", "my-secret-prompt", "--max-tokens", "1", "--yes")):
        run = subprocess.run([bramble.program("console"), *command, "--key", key, "--nodes", impostor.address, "--json"], capture_output=True, text=True, timeout=60,
                             stdin=subprocess.DEVNULL)
        codes.append(run.returncode)
    impostor.listener.close()
    # Next to the key lies the new secret of a rotation that failed.
    secrets = [field.secret]
    for path in (key, key + ".next"):
        if os.path.exists(path):
            with open(path) as file:
                secrets += [bytes.fromhex(one) for one in re.findall(r"secret ([0-9a-f]{64})", file.read())]
    heard = b"".join(impostor.heard)
    expect(not any(secret in heard for secret in secrets), f"{name}: the impostor has a secret")
    expect(b"my-secret-prompt" not in heard, f"{name}: the impostor has the prompt")
    expect(codes[0] != 0, f"{name}: key rotate reports success")
    is_open = bool(psk) and len(impostor.heard) > 1
    expect(not is_open or own[10] == 4, f"{name}: a session is opened")
    return f"{name}: {'a session (known gap)' if is_open else 'refused'}, {len(secrets) - 1} secrets looked for"


ATTACKS = {"S16-revocation": revocation, "S2-impostors": impostors}
