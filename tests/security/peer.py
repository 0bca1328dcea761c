"""Port 9999 from scratch, without code of the daemon and without packages: preamble, Noise_NNpsk0 (X25519,
ChaCha20-Poly1305, BLAKE2s), sealed messages, postcard. For attacks that an honest client cannot perform: each step of
the handshake is a method, and every byte can be changed. `Peer` dials, `answer` plays a node. A handshake takes 5 ms, a
sealed megabyte more than a second.
"""
import hashlib
import hmac
import os
import socket
import struct

MAGIC = b"BRAMBLE\n"
LOWEST, HIGHEST = 4, 14
NONE, KEY, PAIRING = 0, 1, 2
VIEWER, OPERATOR, NODE, OWNER = 1, 2, 3, 4
ROLES = {VIEWER: b"viewer", OPERATOR: b"operator", NODE: b"node", OWNER: b"owner"}
PATIENCE = 10

# X25519 (RFC 7748).
P = 2**255 - 19


def x25519(scalar, point):
    scalar = bytearray(scalar)
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    k, u = int.from_bytes(scalar, "little"), int.from_bytes(point, "little") & (2**255 - 1)
    x1, x2, z2, x3, z3, swap = u, 1, 0, u, 1, 0
    for bit in reversed(range(255)):
        now = k >> bit & 1
        if swap ^ now:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = now
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a % P, c * b % P, a * a % P, b * b % P
        e = aa - bb
        x3, z3, x2, z2 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P, aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


BASE = b"\x09" + bytes(31)


# ChaCha20-Poly1305 (RFC 8439).
def block(key, counter, nonce):
    state = list(struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce))
    x = state[:]
    for _ in range(10):
        for a, b, c, d in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            for first, second, third, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[first] = x[first] + x[second] & 0xFFFFFFFF
                mixed = x[third] ^ x[first]
                x[third] = (mixed << shift | mixed >> 32 - shift) & 0xFFFFFFFF
    return struct.pack("<16I", *(one + two & 0xFFFFFFFF for one, two in zip(x, state)))


def crypt(key, nonce, data):
    out = bytearray()
    for index in range(0, len(data), 64):
        out += bytes(one ^ two for one, two in zip(data[index:index + 64], block(key, 1 + index // 64, nonce)))
    return bytes(out)


def tag(key, nonce, aad, data):
    start = block(key, 0, nonce)[:32]
    r, s, total = int.from_bytes(start[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, int.from_bytes(start[16:], "little"), 0
    padded = lambda part: part + bytes(-len(part) % 16)
    text = padded(aad) + padded(data) + struct.pack("<QQ", len(aad), len(data))
    for index in range(0, len(text), 16):
        total = (total + int.from_bytes(text[index:index + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return (total + s & 2**128 - 1).to_bytes(16, "little")


def nonce_of(number, is_noise):
    """Noise puts the number at the end of a nonce, sealed messages at its beginning."""
    number = struct.pack("<Q", number)
    return bytes(4) + number if is_noise else number + bytes(4)


def seal(key, number, aad, data, is_noise=False):
    nonce = nonce_of(number, is_noise)
    sealed = crypt(key, nonce, data)
    return sealed, tag(key, nonce, aad, sealed)


def unseal(key, number, aad, data, mac, is_noise=False):
    nonce = nonce_of(number, is_noise)
    if tag(key, nonce, aad, data) != mac:
        raise Refused("a forged message")
    return crypt(key, nonce, data)


class Refused(Exception):
    """The other end refused or closed; the text of its reason, if it sent one."""


class Noise:
    """The symmetric state of Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s."""

    def __init__(self, psk, prologue):
        self.h = self.ck = hashlib.blake2s(b"Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s").digest()
        self.key, self.count = None, 0
        self.hash(prologue)
        self.ck, mixed, key = self.derive(psk, 3)
        self.hash(mixed)
        self.key, self.count = key, 0

    def hash(self, data):
        self.h = hashlib.blake2s(self.h + data).digest()

    def derive(self, data, count):
        secret, out, last = hmac.digest(self.ck, data, hashlib.blake2s), [], b""
        for number in range(count):
            last = hmac.digest(secret, last + bytes([number + 1]), hashlib.blake2s)
            out.append(last)
        return out

    def mix(self, data):
        self.ck, self.key = self.derive(data, 2)
        self.count = 0

    def encrypt(self, data):
        body, mac = seal(self.key, self.count, self.h, data, True)
        self.count += 1
        self.hash(body + mac)
        return body + mac

    def decrypt(self, data):
        text = unseal(self.key, self.count, self.h, data[:-16], data[-16:], True)
        self.count += 1
        self.hash(data)
        return text

    def traffic(self):
        """The keys from the dialler and to it."""
        first, second = self.derive(b"", 2)
        return [hmac.digest(key, b"bramble traffic 1" + self.h, "sha256") for key in (first, second)]


def psk_of(secret, role):
    return hmac.digest(secret, b"bramble role 1 " + ROLES[role], "sha256")


def preamble(security=KEY, role=None, lowest=LOWEST, highest=HIGHEST, features=None, links=2):
    """The 16 bytes; an owner is an operator with a bit of its own."""
    features = (2 if role == OWNER else 0) if features is None else features
    return MAGIC + struct.pack("<HHBBBB", lowest, highest, security, features, OPERATOR if role == OWNER else role or 0, links)


# Postcard.
def number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return number(len(value)) + value


def some(value):
    return b"\0" if value is None else b"\1" + value


class Read:
    """Reads postcard from bytes."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self):
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def take(self, count):
        self.at += count
        return self.data[self.at - count:self.at]

    def text(self):
        return self.take(self.number())


CONSOLE = number(0)


def linking(kind, epoch, topology, own, other):
    """The purpose of a link between ranks: 1 data, 2 heartbeats."""
    return number(kind) + number(epoch) + number(topology) + number(own) + number(other)


def hello(name, purpose=CONSOLE):
    return text(name) + text("peer.py") + number(1) + text("machine") + number(0) + purpose


def exactly(sock, count):
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise Refused("the connection was closed")
        data += part
    return data


def printable(data):
    return " ".join(part for part in "".join(chr(byte) if 32 <= byte < 127 else "\n" for byte in data).split("\n") if len(part) > 3)


class Peer:
    """A dialling end. `psk` None: without a key (messages have checksums, so only version 4 is spoken)."""

    def __init__(self, host, psk=None, role=None, name="peer@attack", purpose=CONSOLE, own=None, source=None, port=9999):
        self.sock = socket.create_connection((host, port), PATIENCE, source_address=(source, 0) if source else None)
        self.psk, self.name, self.purpose, self.out, self.into = psk, name, purpose, None, None
        self.sent = self.seen = self.latest = 0
        self.own = own or (preamble(KEY, role) if psk else preamble(NONE, highest=LOWEST, links=0))

    def greet(self):
        self.sock.sendall(self.own)
        self.theirs = exactly(self.sock, 16)
        return self

    def first(self, prologue=None):
        """The first message of the handshake."""
        self.noise, self.secret = Noise(self.psk, prologue or self.own + self.theirs), os.urandom(32)
        public = x25519(self.secret, BASE)
        self.noise.hash(public)
        self.noise.mix(public)
        return public + self.noise.encrypt(hello(self.name, self.purpose))

    def short(self, message):
        self.sock.sendall(struct.pack("<H", len(message)) + message)

    def reply(self):
        length = struct.unpack("<H", exactly(self.sock, 2))[0]
        if length == 0xFFFF:
            raise Refused(printable(exactly(self.sock, struct.unpack("<I", exactly(self.sock, 4))[0])))
        return exactly(self.sock, length)

    def second(self, message):
        self.noise.hash(message[:32])
        self.noise.mix(message[:32])
        self.noise.mix(x25519(self.secret, message[:32]))
        self.noise.decrypt(message[32:])
        self.out, self.into = self.noise.traffic()

    def open(self):
        """The whole handshake up to the Welcome."""
        self.greet()
        if self.psk:
            self.short(self.first())
            self.second(self.reply())
            self.write(b"")
        else:
            self.write(hello(self.name, self.purpose))
        welcome = Read(self.read())
        if welcome.number():
            raise Refused(printable(welcome.data))
        return self

    def sealed(self, body, count=None):
        head = struct.pack("<I", len(body) + (24 if self.out else 0))
        if not self.out:
            return head + body
        count = self.sent if count is None else count
        inside, mac = seal(self.out, count, head, body)
        return head + inside + struct.pack("<Q", count) + mac

    def write(self, body):
        self.sock.sendall(self.sealed(body))
        self.sent += 1

    def read(self):
        head = exactly(self.sock, 4)
        data = exactly(self.sock, struct.unpack("<I", head)[0])
        if not self.into:
            return data
        body = unseal(self.into, self.seen, head, data[:-24], data[-16:])
        self.seen += 1
        return body

    def send(self, body):
        self.latest += 1
        self.write(number(self.latest) + body)

    def ask(self, body):
        """Sends a request; returns the number of the response's variant and its bytes, or raises what it failed with."""
        self.send(body)
        while True:
            answer = Read(self.read())
            if answer.number() == self.latest:
                kind = answer.number()
                if kind == FAILED:
                    raise Refused(printable(answer.data[answer.at:]))
                return kind, answer

    def close(self):
        self.sock.close()


FAILED = 9
REPORT, WATCH, RESTART, CLEAR = number(0), number(1) + number(1000), number(8), number(23)
RECOVERY, MODELS, EXCLUDE = number(15), number(12), number(9)


def standing(peer, caller=None):
    """A node's epoch, its committed topology as bytes (with the desired one) or None, and the whole answer."""
    _, answer = peer.ask(RECOVERY + number(0) + some(caller and text(caller[0]) + text(caller[1])))
    answer.number(), answer.text(), answer.number(), answer.number()
    epoch = answer.number()
    committed = None
    if answer.number():
        answer.number()
        begin = answer.at
        for _ in range(2):
            skip_topology(answer)
            # The desired topology follows as an option.
            if not answer.number():
                break
        committed = answer.data[begin:answer.at]
    return epoch, committed, answer.data


def skip_topology(answer):
    """Skips a topology of version 14 whose replicas are alike."""
    numbers = lambda count: [answer.number() for _ in range(count)]
    # Replicas, stages, ranks, and eight groups.
    numbers(3 + 16)
    for _ in range(answer.number()):
        answer.text(), answer.text(), numbers(3), numbers(answer.number()), numbers(2)
    # Model, identity, formats of cache and sums, the algorithm, context, slots.
    answer.text(), answer.take(32), numbers(2)
    if answer.number():
        numbers(1)
    numbers(2)
    if answer.number():
        answer.take(32)
    if answer.number():
        numbers(1)
    if answer.number():
        raise ValueError("a draft model")


def answer(sock, psk, own):
    """Plays a node that knows one key: returns a Peer after the handshake, whose `hello` is the dialler's."""
    theirs = exactly(sock, 16)
    sock.sendall(own)
    peer = Peer.__new__(Peer)
    peer.sock, peer.psk, peer.theirs, peer.own = sock, psk, theirs, own
    peer.sent = peer.seen = peer.latest = 0
    # Version 4 does not know owners: both ends are bound to what it reads, an operator.
    seen = theirs[:13] + bytes([theirs[13] & ~2]) + theirs[14:] if own[10] == LOWEST else theirs
    peer.noise, secret = Noise(psk, seen + own), os.urandom(32)
    message = peer.reply()
    peer.noise.hash(message[:32])
    peer.noise.mix(message[:32])
    peer.hello = peer.noise.decrypt(message[32:])
    public = x25519(secret, BASE)
    peer.noise.hash(public)
    peer.noise.mix(public)
    peer.noise.mix(x25519(secret, message[:32]))
    peer.short(public + peer.noise.encrypt(b""))
    peer.into, peer.out = peer.noise.traffic()
    peer.read()
    return peer
