"""Attacks of again.py on port 9999: the handshake, roles, numbers where the highest wins, floods, forged lines."""
import os
import random
import re
import socket
import time

import bramble
import peer
from again import Hole, expect
from peer import CONSOLE, EXCLUDE, KEY, MODELS, NODE, NONE, OPERATOR, OWNER, PAIRING, RECOVERY, REPORT, VIEWER, WATCH, Peer, Refused, number, preamble, some, text

LAST, LAST_BALLOT = 2**64 - 1, 2**32 - 1
# Requests of each variant with plausible content, by name.
GENERATE = number(6) + number(0) + text("ROMEO:") + number(0) + number(1)


def refused(work, what):
    """Expects that the other end refuses or closes; returns its reason."""
    try:
        result = work()
    except (Refused, OSError) as reason:
        return str(reason)
    raise Hole(f"{what} is accepted: {str(result)[:200]}")


def handshake(field):
    """Keys of other roles and clusters, changed preambles, downgrades to no key, to pairing and to older versions"""
    host, psk, tried = field.hosts[0], field.psk, 0
    other = os.urandom(32)
    for role in (VIEWER, OPERATOR, NODE, OWNER):
        for key in (other, field.secret, *(psk(other_role) for other_role in (VIEWER, OPERATOR, NODE, OWNER) if other_role != role)):
            refused(lambda: Peer(host, key, role).open(), f"role {role} with another key")
            tried += 1
    for purpose, name in ((1, "data"), (2, "heartbeats")):
        for role in (VIEWER, OPERATOR, OWNER):
            refused(lambda: Peer(host, psk(role), role, purpose=peer.linking(purpose, 1, 1, 0, 1)).open().read(), f"{name} for role {role}")
            tried += 1
    # What a machine between both ends may change: the node sees other bytes than the dialler has sent.
    own = preamble(KEY, OPERATOR)
    for changed in (preamble(KEY, OPERATOR, highest=4), preamble(KEY, OPERATOR, highest=13), preamble(KEY, OPERATOR, links=0), preamble(KEY, OPERATOR, features=1),
                    preamble(KEY, VIEWER), preamble(KEY, OWNER)):
        def between():
            dialler = Peer(host, psk(OPERATOR), OPERATOR)
            dialler.own = changed
            dialler.greet()
            dialler.short(dialler.first(own + dialler.theirs))
            return dialler.reply()

        refused(between, f"a changed preamble {changed}")
        tried += 1
    for first in (preamble(NONE), preamble(NONE, highest=4), preamble(PAIRING), preamble(7), preamble(KEY, OPERATOR, lowest=15, highest=99),
                  preamble(KEY, OPERATOR, lowest=0, highest=3), preamble(KEY), preamble(KEY, 9), preamble(KEY, OPERATOR, links=3), b"GET / HTTP/1.1\r\n"):
        def downgraded():
            dialler = Peer(host, None)
            dialler.own = first
            dialler.greet()
            dialler.write(peer.hello("evil"))
            return dialler.read() if dialler.theirs[12] == NONE else exact_refusal(dialler)

        refused(downgraded, f"the beginning {first}")
        tried += 1
    return f"{tried} beginnings refused"


def exact_refusal(dialler):
    """A node with a key sends nothing but a refusal to an end without one."""
    dialler.sock.settimeout(3)
    data = dialler.sock.recv(65536)
    raise Refused(peer.printable(data))


def replay(field):
    """Recorded, reflected and reordered messages, and messages of another session"""
    host, psk = field.hosts[0], field.psk(OPERATOR)

    def recorded():
        victim = Peer(host, psk, OPERATOR).greet()
        first = victim.first()
        victim.short(first)
        victim.second(victim.reply())
        confirm = victim.sealed(b"")
        victim.sock.sendall(confirm)
        victim.read()
        thief = Peer(host, psk, OPERATOR)
        thief.own = victim.own
        thief.greet()
        thief.short(first)
        thief.reply()
        thief.sock.sendall(confirm)
        return peer.exactly(thief.sock, 4)

    def reflected():
        dialler = Peer(host, psk, OPERATOR).greet()
        dialler.short(dialler.first())
        answer = dialler.reply()
        again = Peer(host, psk, OPERATOR).greet()
        again.short(answer)
        return again.reply()

    def zero_point():
        dialler = Peer(host, psk, OPERATOR).greet()
        dialler.secret = os.urandom(32)
        dialler.noise = peer.Noise(psk, dialler.own + dialler.theirs)
        dialler.noise.hash(bytes(32))
        dialler.noise.mix(bytes(32))
        dialler.short(bytes(32) + dialler.noise.encrypt(peer.hello("evil")))
        message = dialler.reply()
        # The shared point of an end that sent zero is zero: only who holds the key gets here at all.
        dialler.noise.hash(message[:32])
        dialler.noise.mix(message[:32])
        dialler.noise.mix(bytes(32))
        dialler.noise.decrypt(message[32:])
        return "zero"

    sessions = lambda: [field.peer(OPERATOR), field.peer(OPERATOR)]
    request = number(1) + REPORT

    def foreign():
        one, two = sessions()
        two.sock.sendall(one.sealed(request))
        return two.read()

    def twice():
        one = field.peer(OPERATOR)
        message = one.sealed(request)
        one.sock.sendall(message)
        one.sent += 1
        one.read()
        one.sock.sendall(message)
        return one.read()

    def skipped():
        one = field.peer(OPERATOR)
        one.sock.sendall(one.sealed(request, one.sent + 1))
        return one.read()

    def echoed():
        one = Peer(host, psk, OPERATOR).greet()
        one.short(one.first())
        one.second(one.reply())
        one.write(b"")
        head = peer.exactly(one.sock, 4)
        welcome = head + peer.exactly(one.sock, int.from_bytes(head, "little"))
        one.sock.sendall(welcome)
        return one.sock.recv(10) or refuse()

    def flipped(at):
        def work():
            one = field.peer(OPERATOR)
            message = bytearray(one.sealed(request))
            message[at] ^= 1
            one.sock.settimeout(2)
            one.sock.sendall(message)
            return one.read()
        return work

    works = {"a recorded handshake": recorded, "a reflected handshake": reflected, "a message of another session": foreign, "a message twice": twice, "a later message": skipped,
             "the node's own message": echoed}
    works |= {f"a message with byte {at} changed": flipped(at) for at in (1, 4, 5, 6, 10, 14, 20, -1)}
    reasons = [refused(work, what) for what, work in works.items()]
    try:
        zero = zero_point()
    except (Refused, OSError) as reason:
        zero = f"refused ({reason})"
    return f"{len(reasons)} replays and changes refused; an ephemeral key of zero by a holder of the key: {zero}"


def refuse():
    raise Refused("closed")


def exclusion(revision, node="pi9", by="evil@x", reason="gone"):
    return EXCLUDE + number(1) + text(node) + text("10.9.9.9:9999") + some(text(reason)) + text(by) + number(revision) + b"\0"


def rolling(revision, by="evil@x", phase=number(1) + text("evil")):
    return RECOVERY + number(4) + number(1) + text("pi9") + text("10.9.9.9:9999") + number(0) + b"\0" + phase + number(1) + text(by) + number(revision)


def vote(epoch, committed, ballot, member=65535):
    return RECOVERY + number(2) + number(epoch) + committed + b"\0" + number(ballot) + number(member) + b"\0"


def roles(field):
    """S7, S13, S11: every request by a viewer, and requests between nodes by operators and owners"""
    node = field.peer(NODE)
    epoch, committed, _ = peer.standing(node)
    models = lambda variant, *parts: MODELS + number(variant) + text("bard-q8_0.gguf") + b"".join(parts)
    acts = {"prepare": number(3) + number(epoch) + number(epoch + 1) + committed[:-1] + number(0) + b"\0" + number(0), "commit": number(4) + number(epoch) + number(1),
            "abort": number(5) + number(epoch) + number(1), "restart": peer.RESTART,
            "exclude": exclusion(1), "model-verify": models(1, b"\0"), "model-remove": models(2),
            "model-pull": MODELS + number(3) + text("http://127.0.0.1:1/x.gguf") + text("x.gguf") + b"\0", "model-fetch": models(4, text("127.0.0.1:1")),
            "model-read": models(5, number(0)), "model-content": models(7), "rekey": number(13) + bytes(64) + number(0), "take over": RECOVERY + number(3), "rolling": rolling(1),
            "restart by recovery": RECOVERY + number(5) + number(0),
            "cancel another's": number(17) + number(1), "neighbours": number(20) + number(1) + text("127.0.0.1:2222"), "unload": number(21) + number(epoch) + number(1) + b"\0",
            "clear": peer.CLEAR}
    between = {"learn": RECOVERY + number(1) + number(epoch + 1000) + committed, "recall": RECOVERY + number(6) + number(epoch + 1000) + committed, "vote": vote(epoch, committed, 7)}
    for what, body in {**acts, **between}.items():
        reason = refused(lambda: field.peer(VIEWER).ask(body), f"{what} by a viewer")
        expect("viewer" in reason, f"{what} by a viewer: {reason}")
    for role in (OPERATOR, OWNER):
        for what, body in between.items():
            reason = refused(lambda: field.peer(role).ask(body), f"{what} by role {role}")
            expect("operator" in reason or "owner" in reason, f"{what}: {reason}")
    now, held, _ = peer.standing(node)
    expect((now, held) == (epoch, committed), f"epoch {epoch} became {now}")
    viewer = field.peer(VIEWER)
    settings = viewer.ask(number(16) + number(1))[1].data + viewer.ask(number(16) + number(0) + number(0) + number(0))[1].data
    expect(b"sk-" not in settings and field.secret.hex().encode() not in settings, "settings or logs show keys to a viewer")
    return f"{len(acts) + len(between)} requests by a viewer, {2 * len(between)} by operators and owners refused; epoch {now}"


def highest(field):
    """S11: the highest epoch, revision and ballot, from every role that may send one, with and without a key"""
    told = []
    for index, maker in ((0, lambda: field.peer(NODE)), (0, lambda: field.peer(OPERATOR)), (2, lambda: Peer(field.hosts[2]).open())):
        node = maker()
        if index == 2:
            # Without a key only version 4 is spoken here, whose topology is shorter.
            asks = {"exclude": EXCLUDE + number(1) + text("pi9") + text("10.9.9.9:9999") + some(text("gone")) + text("evil@x") + number(LAST), "rolling": rolling(LAST)}
            committed = None
        else:
            epoch, committed, _ = peer.standing(node)
            asks = {"exclude": exclusion(LAST), "exclude far": exclusion(2**40), "rolling": rolling(LAST)}
            if index == 0 and not told:
                far = number(LAST) + committed
                asks |= {"learn": RECOVERY + number(1) + far, "recall": RECOVERY + number(6) + far, "vote on": vote(LAST, committed, 1), "ballot": vote(epoch, committed, LAST_BALLOT)}
        for what, body in asks.items():
            # Some are answered and ignored: then the state below tells.
            try:
                kind, answer = node.ask(body)
                told.append(f"{what}: answered")
                expect(what not in ("ballot", "learn", "recall", "exclude", "rolling"), f"{what} of the highest number is accepted: {answer.data[:40]}")
            except (Refused, OSError) as reason:
                told.append(f"{what}: refused")
                if "closed" in str(reason):
                    raise Hole(f"{what}: the message was not understood") from reason
        if committed:
            now, held, _ = peer.standing(maker())
            expect((now, held) == (epoch, committed), f"epoch {epoch} became {now}")
            node = maker()
            if index == 0 and "ballot" in asks:
                kind, answer = node.ask(vote(epoch, committed, 1, 0))
                answer.number()
                expect(answer.number() == 0, "no later ballot is promised any more")
    return f"{len(told)} messages, {sum('refused' in one for one in told)} refused; epoch and votes unchanged"


def standing(field):
    """S12: addresses told by viewers, operators, and nodes under other names are neither kept nor dialled"""
    canary = socket.create_server(("127.9.9.9", 0))
    canary.settimeout(2 if field.is_short else 10)
    address = f"127.9.9.9:{canary.getsockname()[1]}"
    told = 0
    for role, name in ((VIEWER, "pi2"), (OPERATOR, "pi2"), (OWNER, "pi2"), (NODE, "pi1"), (NODE, "stranger")):
        guest = field.peer(role, name=name)
        for index in range(12 if field.is_short else 70):
            peer.standing(guest, ("pi2" if index % 2 else f"fake{index}", address))
            told += 1
    _, _, data = peer.standing(field.peer(VIEWER))
    expect(address.encode() not in data, "the address is kept")
    try:
        canary.accept()
        raise Hole("a node dialled the address")
    except socket.timeout:
        pass
    canary.close()
    return f"{told} false addresses, none kept, none dialled"


def floods(field):
    """S7, half-open handshakes: viewers that ask for logs and do not read, unfinished messages, begun handshakes"""
    peak, held, count = field.peaks(), [], 10 if field.is_short else 200
    for index in range(count):
        try:
            viewer = field.peer(VIEWER)
        except (Refused, OSError):
            continue
        held.append(viewer.sock)
        viewer.sock.settimeout(0.2)
        try:
            for _ in range(30 if field.is_short else 100):
                viewer.send(number(16) + number(0) + number(0) + number(0))
            viewer.sock.sendall((60_000).to_bytes(4, "little") + bytes(50_000))
        except OSError:
            pass
    viewers = len(held)
    half = 0
    for index in range(200 if field.is_short else 3000):
        sock = socket.socket()
        sock.settimeout(3)
        try:
            sock.bind((f"127.2.{index // 200}.{1 + index % 200}", 0))
            sock.connect((field.hosts[0], 9999))
            sock.sendall(preamble(KEY, OPERATOR)[:index % 17])
            if index % 17 == 16:
                sock.sendall(b"\xff\x3f" + bytes(100))
            held.append(sock)
            half += 1
        except OSError:
            sock.close()
    begin = time.monotonic()
    operator = None
    while not operator:
        try:
            operator = field.peer(OPERATOR)
        except (Refused, OSError) as reason:
            expect(time.monotonic() - begin < 10, f"an operator is not let in: {reason}")
    entered = time.monotonic() - begin
    operator.ask(REPORT)
    answered = time.monotonic() - begin
    for sock in held:
        sock.close()
    expect(peak()[0] <= 96, f"memory +{peak()[0]} MB")
    return f"{viewers} viewers, {half} begun handshakes; an operator enters after {1e3 * entered:.0f} and has a report after {1e3 * answered:.0f} ms; memory +{peak()[0]} MB"


def noise(field):
    """Random and cut messages of viewers, operators, nodes and ranks after the handshake"""
    source, sent, ended = random.Random(11), 0, 0
    seeds = [REPORT, WATCH, GENERATE, exclusion(3), rolling(3), vote(1, b"", 1), MODELS + number(5) + text("bard-q8_0.gguf") + number(LAST), number(19) + bytes(30),
             number(22) + bytes(30), number(10) + bytes(40)]
    purposes = [peer.linking(kind, epoch, hash_, own, other) for kind in (1, 2) for epoch, hash_, own,
                other in ((1, 1, 0, 1), (LAST, LAST, 65535, 65535), (0, 0, 0, 0))] + [number(3), number(9), CONSOLE]
    end = time.monotonic() + (3 if field.is_short else 60)
    while time.monotonic() < end:
        role = source.choice((VIEWER, OPERATOR, NODE, NODE))
        try:
            one = field.peer(role, purpose=source.choice(purposes) if role == NODE else CONSOLE)
        except (Refused, OSError):
            ended += 1
            continue
        one.sock.settimeout(0.05)
        try:
            for _ in range(30):
                body = bytearray(source.choice(seeds))
                # Never a request that would stop the node.
                for _ in range(source.randrange(4)):
                    body[source.randrange(1, len(body)) if len(body) > 1 else 0] = source.randrange(256)
                if body[0] in (8, 13, 18, 21, 23) or (body[:1] == RECOVERY and body[1:2] in (b"\5", b"\3")):
                    continue
                body = body[:source.randrange(1, len(body) + 1)] if source.random() < 0.3 else body + os.urandom(source.randrange(20))
                one.write(number(sent) + bytes(body))
                sent += 1
        except OSError:
            ended += 1
        one.close()
    return f"{sent} messages, {ended} sessions ended by the node"


def forged_lines(field):
    """S14, S17: names, reasons, addresses and paths with line ends, escapes and reversed writing, in log and metrics"""
    evil = "x\n2026-11-28T00:00:00.000000Z  INFO audit: owner root@desk (10.0.0.9:5): rekey: ok\r\x1b[2J\x9b31m\u202e\u2066\u2028y"
    refused(lambda: field.peer(OPERATOR, name=evil), "a name with lines")
    refused(lambda: field.peer(VIEWER, name="n" * 256), "a name of 256 bytes")
    operator, answers = field.peer(OPERATOR), 0
    for body in (exclusion(5, node=evil), exclusion(5, by=evil), exclusion(5, reason=evil), rolling(5, by=evil), rolling(5, phase=number(1) + text(evil)),
                 MODELS + number(4) + text("x.gguf") + text(evil), MODELS + number(3) + text("http://127.0.0.1:1/" + evil) + text("x.gguf") + b"\0",
                 MODELS + number(2) + text(evil + ".gguf"), number(2) + text(evil), number(20) + number(1) + text(evil)):
        try:
            operator.ask(body)
        except (Refused, OSError):
            answers += 1
    host = field.hosts[2]
    for path in ("/%0aINFO%20audit:%20owner", "/v1/models/%0a%1b%5b2J"):
        field.get(host, path)
    for model in (evil, "\u202e" + "m" * 3000):
        field.post(host, "/v1/completions", {"model": model, "prompt": "a"}, headers={"X-Request-Id": "a\tb"})
    log = field.logs()
    lines = [line for line in log.splitlines() if "root@desk" in line and line.startswith("2026-11-28T00:00:00")]
    unsafe = [line for line in log.split("\n") if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]", line)]
    expect(not lines and not unsafe, f"forged {lines[:1]} unsafe {unsafe[:1]}")
    address = bramble.loopback(1)[0]
    name = 'a"b\\c} 1 evil{'
    daemon = field.cluster.add(name, address, settings="mdns = false\n")
    try:
        bramble.generate([daemon], "bard-q8_0.gguf", "ROMEO:", 1)
        metrics = field.get(address.split(":")[0], "/metrics")[2].decode()
        sample = r'[a-z_:]+(\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)*\})? [-+0-9.eINnaf]+'
        wrong = [line for line in metrics.splitlines() if not line.startswith("#") and not re.fullmatch(sample, line)]
        expect(not wrong, f"/metrics is invalid: {wrong[:2]}")
    finally:
        daemon.stop()
        field.cluster.daemons.remove(daemon)
    return f"{answers} of 10 requests refused, {len(log.splitlines())} lines of log clean, {len(metrics.splitlines())} lines of metrics valid"


ATTACKS = {"handshake": handshake, "replay": replay, "S11-roles": roles, "S11-highest": highest, "S12-standing": standing, "S7-floods": floods, "noise": noise,
           "S14-lines": forged_lines}
