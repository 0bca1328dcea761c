"""The load during faults: streams with known texts like those of tests/netns/streams.py, and requests of other kinds:
chats, answers that are no streams, sampled ones, requests that are cancelled, and invalid ones."""
import asyncio
import collections
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(FOLDER, "..", "netns"), os.path.join(FOLDER, "..", "python"), os.path.join(FOLDER, "..", "serve")]
import client
import streams

# Tokens of the answers, longer than most faults take to begin.
TOKENS = (30, 60, 90, 140)
# Two best tokens whose log probabilities are closer than this may swap where other ranks compute a text without int8
# activations: only the last bits of sums differ. A sampled token may change at any place for the same reason, without a
# tie that would show it: where ranks move, all requests are greedy.
TIE = 1e-3
AT_A_TIME = 4
INVALID = [{"max_tokens": "many"}, {"temperature": "hot"}, {"prompt": {}}, {"top_logprobs": 2000, "logprobs": 2000}]


class Request(streams.Prompt):
    """A prompt with its form: `chat` or a completion, `is_stream`, sampled with a seed or greedy."""

    def __init__(self, text, tokens, chat=False, is_stream=True, seed=None):
        super().__init__(text, tokens)
        self.chat, self.is_stream, self.seed = chat, is_stream, seed

    def body(self, model):
        body = {"model": model, "max_tokens": self.tokens, "temperature": 0}
        body |= {"messages": [{"role": "user", "content": self.text}]} if self.chat else {"prompt": self.text}
        if self.seed is not None:
            body |= {"temperature": 0.8, "seed": self.seed}
        if self.is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return "/v1/chat/completions" if self.chat else "/v1/completions", body


def requests(prompts, is_long, has_chats, moves):
    """Every prompt as a greedy stream, and short ones also in another form, as chats only if the model has a template,
    and sampled only if the same ranks compute all answers. With a prefill group, the text of a long prompt depends on
    where it was computed, so it has one form."""
    found = []
    for index, prompt in enumerate(prompts):
        tokens = prompt.tokens if is_long and len(prompt.text) > 100 else TOKENS[index % len(TOKENS)]
        found.append(Request(prompt.text, tokens))
        if len(prompt.text) < 100:
            seed = None if moves or index % 4 == 0 else index
            found.append(Request(prompt.text, tokens // 2, chat=has_chats and index % 2 == 0, is_stream=index % 3 == 0, seed=seed))
    return found


class Traffic(streams.Streams):
    """`downs`, lanes and verdicts are those of Streams; one more lane cancels requests and sends invalid ones. `moves`:
    whether other ranks may compute an answer than those that computed the expected one."""

    def __init__(self, has_chats, moves, *more):
        super().__init__(*more)
        self.moves, self.prompts = moves, requests(self.prompts, self.is_long, has_chats, moves)
        self.others = collections.Counter()

    async def ask(self, node, prompt, on_text=None, **more):
        if not isinstance(prompt, Request):
            return await super().ask(node, prompt, on_text, **more)
        path, body = prompt.body(self.model)
        answer = await client.ask("127.0.0.1", "POST", path, body, on_text=on_text, connect=self.doors.to(node))
        if not prompt.is_stream and answer.status == 200 and not answer.error:
            whole = answer.json()
            choice = whole["choices"][0]
            answer.text = choice["message"]["content"] if prompt.chat else choice["text"]
            answer.usage, answer.finish, answer.whole = whole["usage"], choice["finish_reason"], True
        return answer

    async def expect(self):
        """Records the answers of an undisturbed cluster, half of them twice, next to different others."""
        for begin in range(0, len(self.prompts), AT_A_TIME):
            await asyncio.gather(*(self.expect_one(prompt) for prompt in self.prompts[begin:begin + AT_A_TIME]))
        await asyncio.gather(*(self.expect_one(prompt) for prompt in self.prompts[::2]))
        client.assert_varied([prompt.expected for prompt in self.prompts if prompt.usage >= TOKENS[0]])

    async def expect_one(self, prompt):
        if (self.is_long or self.moves) and not prompt.chat and prompt.seed is None and prompt.tie is None:
            body = {"model": self.model, "prompt": prompt.text, "max_tokens": prompt.tokens, "temperature": 0, "logprobs": 2}
            whole = await asyncio.wait_for(client.ask("127.0.0.1", "POST", "/v1/completions", body, connect=self.doors.to(self.front)), streams.REQUEST_SECONDS)
            logprobs = whole.json()["choices"][0]["logprobs"]
            prompt.tie = streams.first_tie(logprobs, TIE) if self.moves else streams.first_tie(logprobs)
        answer = await asyncio.wait_for(self.ask(self.front, prompt), streams.REQUEST_SECONDS)
        if not answer.whole or answer.faults:
            sys.exit(f"an undisturbed cluster answers with status {answer.status}: {answer.error or answer.faults or answer.body[:300]}")
        # The ranks do not change yet.
        if prompt.expected not in (None, answer.text) and (self.moves or prompt.tie is None):
            sys.exit(f"an undisturbed cluster answers {answer.text!r}, then {prompt.expected!r}")
        prompt.expected, prompt.usage = answer.text, answer.usage["completion_tokens"]

    def others_since(self):
        """Counts of cancelled and refused requests since the last call."""
        found, self.others = dict(self.others), collections.Counter()
        return found

    async def abort(self, node):
        """A client that goes away after a random time."""
        prompt = self.random.choice(self.prompts)
        task = asyncio.create_task(self.ask(node, prompt))
        await asyncio.wait([task], timeout=self.random.uniform(0.01, 0.6))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.others["cancelled"] += 1

    async def refuse(self, node):
        """An invalid request, which must be refused as invalid during every fault."""
        body = {"model": self.model, "prompt": "a", "max_tokens": 1, **self.random.choice(INVALID)}
        answer = await asyncio.wait_for(client.ask("127.0.0.1", "POST", "/v1/completions", body, connect=self.doors.to(node)), streams.REQUEST_SECONDS)
        self.others["refused"] += 1
        if answer.status != 400:
            self.violations.append(f"an invalid request {body} ends with status {answer.status}: {answer.error or answer.body[:200]}")

    async def others_lane(self):
        while not self.stop.is_set():
            try:
                await (self.abort if self.random.random() < 0.7 else self.refuse)(self.front)
            except (OSError, asyncio.TimeoutError) as error:
                self.violations.append(f"the gateway node does not take a request: {error!r}")
            await asyncio.sleep(0.3)

    async def run(self):
        await asyncio.gather(super().run(), self.others_lane())
