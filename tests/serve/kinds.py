"""Requests of every kind that the HTTP API accepts: completions, chats, streams, tools, structured output, embeddings, the
APIs of Anthropic, Ollama, llama-server and OpenAI's responses, invalid and too long ones. Each kind builds a request and
reads the text of its answer; a request that must be refused has a status instead."""
import json

TOOL = {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string", "maxLength": 6}}, "required": ["word"]}}
SCHEMA = {"type": "object", "properties": {"mood": {"enum": ["sad", "glad"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["mood", "age"]}
# All objects of the schema, without white space and the end.
OBJECTS = [f'{{"mood":"{mood}","age":{age}' for mood in ("sad", "glad") for age in range(1, 10)]
LONG = "to be or not to be " * 400


class Kind:
    """`body`: of a model, prompt, number of tokens and seed; `text`: of an answer's object, or `None` for streams that
    end with [DONE]; `status`: of the expected refusal."""

    def __init__(self, path, body, text=None, status=200, stream=None, method="POST"):
        self.path, self.body, self.text, self.status, self.stream, self.method = path, body, text, status, stream, method

    def judge(self, answer):
        """The text of a right answer; raises Wrong or Typed otherwise."""
        if answer.status == 0 or (answer.error and not answer.faults):
            raise Wrong(f"the connection broke: {answer.error}")
        if answer.faults:
            raise typed(answer, answer.faults)
        # While a node does not report to the gateway, that node may have the model.
        if self.status == 404 and answer.status == 503 and refusal(answer).get("code") == "model_unknown":
            return "404 model_not_found"
        if answer.status != self.status:
            raise typed(answer, [refusal(answer)])
        if self.status != 200:
            return f"{answer.status} {refusal(answer).get('code')}"
        if self.stream:
            return self.stream(answer)
        return self.text(answer.json()) if self.text else answer.body.decode()


class Wrong(Exception):
    """An answer that no fault explains."""


class Typed(Exception):
    """One typed error, by its code."""


def refusal(answer):
    """The error object of a body, whichever API it is of: those of Ollama have only a text."""
    try:
        found = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        raise Wrong(f"status {answer.status} without an error object: {answer.body[:200]}") from None
    return found if isinstance(found, dict) else {"message": found, "code": f"status_{answer.status}"}


def typed(answer, faults):
    code = faults[0].get("code") or faults[0].get("type")
    if len(faults) != 1 or not code or not faults[0].get("message"):
        return Wrong(f"status {answer.status}, errors {faults}")
    return Typed(code)


def events(answer):
    """The text of a stream of OpenAI's kind."""
    if not answer.whole or answer.after_end:
        raise Wrong(f"a stream without one end: {answer.text[-100:]!r}")
    return answer.text


def lines(answer):
    """The text of a stream of JSON lines, as Ollama has it."""
    found = [json.loads(line) for line in answer.body.splitlines() if line]
    if [one for one in found if "error" in one]:
        raise Typed("stream_error")
    if not found or not found[-1].get("done") or sum(bool(one.get("done")) for one in found) != 1:
        raise Wrong(f"a stream of lines without one end: {answer.body[-200:]}")
    return "".join(one.get("response") or (one.get("message") or {}).get("content") or "" for one in found)


def named(answer):
    """The end of a stream of named events, as Anthropic and the responses have it."""
    ends = [answer.events.count(name) for name in ("message_stop", "response.completed", "response.incomplete")]
    if sum(ends) != 1 or "error" in answer.events or "response.failed" in answer.events:
        raise Typed("stream_error") if {"error", "response.failed"} & set(answer.events) else Wrong(f"a stream without one end: {answer.events[-3:]}")
    return str(len(answer.events))


def words(value):
    if not value:
        raise Wrong("an answer is empty")
    return value


def structured(text):
    """A text in which nothing contradicts the schema; its length may end it before the object is whole."""
    compact = "".join(text.split())
    if not any(compact.startswith(one) or one.startswith(compact) for one in OBJECTS):
        raise Wrong(f"an answer breaks its schema: {text!r}")
    return text


def base(model, tokens, seed):
    return {"model": model, "max_tokens": tokens, "temperature": 0 if seed % 2 else 0.9, "seed": seed}


def messages(prompt):
    return [{"role": "user", "content": prompt}]


def completion(**more):
    return lambda model, prompt, tokens, seed: {**base(model, tokens, seed), "prompt": prompt, **more}


def chat(**more):
    return lambda model, prompt, tokens, seed: {**base(model, tokens, seed), "messages": messages(prompt), **more}


def options(tokens, seed):
    return {"options": {"num_predict": tokens, "temperature": 0 if seed % 2 else 0.9, "seed": seed}}


def first_text(answer):
    return answer["choices"][0]["text"]


def content(answer):
    message = answer["choices"][0]["message"]
    return json.dumps([call["function"] for call in message.get("tool_calls") or []]) if message.get("tool_calls") else message["content"]


# Enough for the first value; the demo model fills most of an object with white space.
SCHEMA_TOKENS = 48
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "mood", "schema": SCHEMA}}
TOOLS = {"tools": [{"type": "function", "function": TOOL}]}

KINDS = {
    "completion": Kind("/v1/completions", completion(), first_text),
    "completion stream": Kind("/v1/completions", completion(stream=True, stream_options={"include_usage": True}), stream=events),
    "chat": Kind("/v1/chat/completions", chat(), content),
    "chat stream": Kind("/v1/chat/completions", chat(stream=True, logprobs=True, top_logprobs=2), stream=events),
    "several": Kind("/v1/completions", completion(n=2, logprobs=1), first_text),
    "echo": Kind("/v1/completions", completion(echo=True, logprobs=1), first_text),
    "tools": Kind("/v1/chat/completions", chat(tool_choice="required", **TOOLS), content),
    "schema": Kind("/v1/chat/completions", chat(response_format=SCHEMA_FORMAT, max_tokens=SCHEMA_TOKENS), lambda answer: structured(content(answer))),
    "schema stream": Kind("/v1/chat/completions", chat(response_format=SCHEMA_FORMAT, max_tokens=SCHEMA_TOKENS, stream=True), stream=lambda answer: structured(events(answer))),
    "embeddings": Kind("/v1/embeddings", lambda model, prompt, tokens, seed: {"model": model, "input": [prompt, prompt[:5]]}, lambda answer: str(words(answer["data"][1]["embedding"])[:4])),
    "anthropic": Kind("/v1/messages", lambda model, prompt, tokens, seed: {**base(model, tokens, seed), "messages": messages(prompt)}, lambda answer: str(answer["stop_reason"])),
    "anthropic stream": Kind("/v1/messages", lambda model, prompt, tokens, seed: {**base(model, tokens, seed), "messages": messages(prompt), "stream": True}, stream=named),
    "count tokens": Kind("/v1/messages/count_tokens", lambda model, prompt, tokens, seed: {"model": model, "messages": messages(prompt)}, lambda answer: str(words(answer["input_tokens"]))),
    "responses": Kind("/v1/responses", lambda model, prompt, tokens, seed: {"model": model, "input": prompt, "max_output_tokens": tokens, "store": seed % 3 == 0}, lambda answer: answer["status"]),
    "responses stream": Kind("/v1/responses", lambda model, prompt, tokens, seed: {"model": model, "input": prompt, "max_output_tokens": tokens, "stream": True}, stream=named),
    "ollama": Kind("/api/generate", lambda model, prompt, tokens, seed: {"model": model, "prompt": prompt, "raw": True, "stream": False, **options(tokens, seed)}, lambda answer: answer["response"]),
    "ollama stream": Kind("/api/chat", lambda model, prompt, tokens, seed: {"model": model, "messages": messages(prompt), **options(tokens, seed)}, stream=lines),
    "ollama embed": Kind("/api/embed", lambda model, prompt, tokens, seed: {"model": model, "input": prompt}, lambda answer: str(words(answer["embeddings"][0])[:4])),
    "llama-server": Kind("/completion", lambda model, prompt, tokens, seed: {"prompt": prompt, "n_predict": tokens, "seed": seed, "temperature": 0}, lambda answer: answer["content"]),
    "tokenize": Kind("/tokenize", lambda model, prompt, tokens, seed: {"content": prompt}, lambda answer: str(words(answer["tokens"]))),
    "models": Kind("/v1/models", None, lambda answer: words(answer["data"])[0]["id"], method="GET"),
    "metrics": Kind("/metrics", None, method="GET"),
    "wrong type": Kind("/v1/completions", completion(max_tokens="many"), status=400),
    "negative": Kind("/v1/chat/completions", chat(temperature=-3), status=400),
    "no JSON": Kind("/v1/completions", lambda *_: b'{"prompt": ', status=400),
    "no such model": Kind("/v1/completions", completion(model="nothing"), status=404),
    "no such path": Kind("/v1/nothing", completion(), status=404),
    "too long": Kind("/v1/completions", lambda model, prompt, tokens, seed: {**base(model, tokens, seed), "prompt": prompt + LONG}, status=400),
    "wrong anthropic": Kind("/v1/messages", lambda model, prompt, tokens, seed: {"model": model, "max_tokens": tokens, "messages": prompt}, status=400),
}
# Kinds whose texts show the tokens and depend only on the request.
COMPARED = ("completion", "completion stream", "chat", "chat stream", "echo", "tools", "schema", "embeddings", "ollama", "llama-server", "tokenize", "count tokens")
# Number of different seeds: each comes again with the same prompt and length, so that texts can be compared.
REPEATED = 97
