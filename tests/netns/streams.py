"""Continuous streams over the HTTP API of nodes in network namespaces, each compared with its known text while it
arrives."""
import asyncio
import contextlib
import ctypes
import os
import random
import socket
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(FOLDER, "..", "python"), os.path.join(FOLDER, "..", "serve")]
import bramble
import client

CLONE_NEWNET = 0x40000000
# Longest duration of any request: the gateway waits at most 60 s for a lost head, and the longest fault lasts 5 s.
REQUEST_SECONDS = 90
# Codes that none of these faults may cause: they mean a bug, not a lost node.
FORBIDDEN = ("internal", "malformed_message", "message_forged", "message_replayed", "message_missing")
LONG = (
    "KING HENRY:\nNow is the winter of our discontent made glorious summer by this sun of York, and all the clouds that lowered upon our "
    "house in the deep bosom of the ocean buried. Now are our brows bound with victorious wreaths, our bruised arms hung up for monuments, "
    "our stern alarums changed to merry meetings, our dreadful marches to delightful measures.\n\n"
)


class Doors:
    """Opens sockets in the network namespaces of nodes: their HTTP ports are at the loopback address there."""

    def __init__(self, network):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.places = [os.open(f"/proc/{holder.pid}/ns/net", os.O_RDONLY) for holder in network.nodes]

    @contextlib.contextmanager
    def inside(self, node):
        """Puts this thread into a node's namespace for the block, which must not await anything."""
        if self.libc.setns(self.places[node], CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace of node {node + 1}")
        try:
            yield
        finally:
            if self.libc.setns(self.own, CLONE_NEWNET):
                os._exit(1)

    def to(self, node):
        """A function that opens a connection to a node's HTTP port."""

        async def connect():
            with self.inside(node):
                one = socket.socket()
            one.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", client.PORT))
                return await asyncio.open_connection(sock=one, limit=1 << 24)
            except BaseException:
                one.close()
                raise

        return connect

    def close(self):
        for place in [*self.places, self.own]:
            os.close(place)


class Prompt:
    """A prompt with the one text of its greedy answer. `ties`: offsets in the text from which on another computation of
    the same prompt (with another number of ranks) may differ, because two tokens are equally good there."""

    def __init__(self, text, tokens):
        self.text, self.tokens = text, tokens
        self.expected, self.usage, self.tie = None, None, None


def prompts(is_long):
    """Short prompts; if there is a prefill group, also prompts long enough for it."""
    found = [Prompt(f"{text} {index}", 60 + 45 * index) for index, text in enumerate(bramble.PROMPTS)]
    if is_long:
        found += [Prompt(LONG * 2 + text, 50 + 20 * index) for index, text in enumerate(bramble.PROMPTS[:6])]
    return found


class Stream:
    """A running request and its outcome."""

    def __init__(self, number, node, prompt):
        self.number, self.node, self.prompt = number, node, prompt
        self.began, self.ended, self.heard, self.characters = time.monotonic(), None, None, 0
        self.wrong, self.tied, self.answer, self.code = None, False, None, None

    def __str__(self):
        return f"request {self.number} through node {self.node + 1} ({self.prompt.text[-14:]!r}, {self.prompt.tokens} tokens)"

    def on_text(self, answer):
        self.heard, self.characters = time.monotonic(), len(answer.text)
        if not self.wrong and not self.prompt.expected.startswith(answer.text):
            same = len(os.path.commonprefix([self.prompt.expected, answer.text]))
            if self.prompt.tie is not None and same >= self.prompt.tie:
                self.tied = True
            else:
                self.wrong = f"text differs from character {same} on: {answer.text[max(0, same - 20):same + 40]!r} instead of {self.prompt.expected[max(0, same - 20):same + 40]!r}"

    def judge(self, may_break):
        """Returns what is wrong with the request, if anything, and sets the code with which it ended. `may_break`: its
        node was ended meanwhile."""
        answer = self.answer
        # Until a better outcome is established.
        self.code = "wrong"
        if self.wrong:
            return f"{self}: {self.wrong}"
        faults = answer.faults
        if not faults and answer.status not in (0, 200):
            try:
                faults = [answer.json()["error"]]
            except (ValueError, KeyError, TypeError):
                return f"{self}: status {answer.status} without an error object: {answer.body[:200]}"
        if len(faults) > 1 or answer.after_end:
            return f"{self}: {len(faults)} errors, {answer.after_end} lines after the end"
        if faults:
            self.code = str(faults[0].get("code"))
            if not faults[0].get("code") or not faults[0].get("message") or self.code in FORBIDDEN:
                return f"{self}: ended with {faults[0]}"
            return None
        if not answer.whole:
            self.code = "connection"
            return None if may_break else f"{self}: its connection broke after {self.characters} characters: {answer.error}"
        # The other of two equal tokens may also give the same letters, in more or fewer tokens.
        same_letters = answer.text.startswith(self.prompt.expected) or self.prompt.expected.startswith(answer.text)
        if self.prompt.tie is not None and same_letters and self.prompt.tie <= min(len(answer.text), len(self.prompt.expected)):
            self.tied = self.tied or answer.text != self.prompt.expected
        if not self.tied and answer.text != self.prompt.expected:
            return f"{self}: {len(answer.text)} characters instead of {len(self.prompt.expected)}: {answer.text[-40:]!r}"
        if (answer.usage or {}).get("completion_tokens") != self.prompt.usage and not (self.tied and answer.finish == "stop"):
            return f"{self}: counts {answer.usage}, not {self.prompt.usage} tokens"
        self.code = "right"
        return None


class Streams:
    """Keeps a number of streams running: all but one through a node to which no fault applies, one through members.
    `downs`: when nodes were down, as (node, from, to or None)."""

    def __init__(self, doors, model, front, members, count, seed, is_long, tell):
        self.doors, self.model, self.front, self.members, self.count = doors, model, front, members, count
        self.prompts, self.random, self.tell = prompts(is_long), random.Random(seed), tell
        self.is_long, self.running, self.ended, self.violations, self.downs = is_long, set(), [], [], []
        self.number, self.stop, self.tied = 0, asyncio.Event(), 0

    def ask(self, node, prompt, on_text=None, **more):
        options = {"model": self.model, "temperature": 0, "stream_options": {"include_usage": True}, **more}
        return client.complete("127.0.0.1", prompt.text, prompt.tokens, on_text, connect=self.doors.to(node), **options)

    async def expect(self):
        """Records the texts of an undisturbed cluster."""
        for prompt in self.prompts:
            body = {"model": self.model, "prompt": prompt.text, "max_tokens": prompt.tokens, "temperature": 0, "logprobs": 2}
            whole = await asyncio.wait_for(client.ask("127.0.0.1", "POST", "/v1/completions", body, connect=self.doors.to(self.front)), REQUEST_SECONDS)
            if whole.status != 200:
                sys.exit(f"an undisturbed cluster answers with status {whole.status}: {whole.error or whole.body[:300]}")
            choice = whole.json()["choices"][0]
            prompt.expected, prompt.usage = choice["text"], whole.json()["usage"]["completion_tokens"]
            if self.is_long:
                prompt.tie = first_tie(choice["logprobs"])
            streamed = await asyncio.wait_for(self.ask(self.front, prompt), REQUEST_SECONDS)
            if streamed.text != prompt.expected and prompt.tie is None:
                sys.exit(f"an undisturbed cluster answers {streamed.text!r}, then {prompt.expected!r}")

    async def one(self, node, prompt):
        self.number += 1
        stream = Stream(self.number, node, prompt)
        self.running.add(stream)
        try:
            stream.answer = await asyncio.wait_for(self.ask(node, prompt, stream.on_text), REQUEST_SECONDS)
            wrong = stream.judge(self.was_down(node, stream.began))
        except asyncio.TimeoutError:
            stream.code, wrong = "hang", f"{stream}: HANGS, no end after {REQUEST_SECONDS} s and {stream.characters} characters"
        finally:
            stream.ended = time.monotonic()
            self.running.discard(stream)
        self.ended.append(stream)
        self.tied += stream.tied
        if stream.code != "right":
            self.tell(f"{stream} ended after {stream.ended - stream.began:.1f} s and {stream.characters} characters: {stream.code}: {(stream.answer.error or '') if stream.answer else ''}")
        if wrong:
            self.violations.append(wrong)
            self.tell(f"VIOLATION: {wrong}")
        return stream

    def was_down(self, node, since):
        """Whether a node was down at any time since then."""
        return any(down == node and (until is None or until >= since) for down, _, until in self.downs)

    async def lane(self, lane):
        while not self.stop.is_set():
            node = self.random.choice(self.members) if lane == 0 else self.front
            stream = await self.one(node, self.random.choice(self.prompts))
            # A node that is down refuses at once.
            await asyncio.sleep(0.1 if stream.code == "right" else 0.4)

    async def run(self):
        await asyncio.gather(*(self.lane(lane) for lane in range(self.count)))


def first_tie(logprobs, tie=bramble.TIE):
    """The offset in the text of the first token that is not clearly the best; beyond the end if there is none. `tie`:
    log probabilities that are closer than this may swap."""
    for offset, best in zip(logprobs["text_offset"], logprobs["top_logprobs"]):
        values = sorted(best.values(), reverse=True)
        if len(values) > 1 and values[0] - values[1] < tie:
            return offset - logprobs["text_offset"][0]
    return sum(len(token) for token in logprobs["tokens"])
