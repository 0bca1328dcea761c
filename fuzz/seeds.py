#!/usr/bin/env python3
"""Writes seeds of the fuzz targets, made of the repository's fixtures, below fuzz/corpus. A target without seeds here
finds its way alone."""
import gzip
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz/corpus"
FIXTURES = ROOT / "tests/fixtures"
sys.path.append(str(ROOT / "tests/security"))
import variants  # noqa: E402
from peer import number  # noqa: E402


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(data)


def write_all(target, name, texts, before=b"", after=b""):
    for place, one in enumerate(dict.fromkeys(texts)):
        write(target, f"{name}-{place}", before + one.encode() + after)


def text(data):
    return struct.pack("<Q", len(data)) + data


class Gguf:
    """A GGUF header as keys and tensors, each as its bytes."""

    FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, data):
        self.data, self.at = data, 8
        tensors, keys = self.long(), self.long()
        self.keys, self.tensors = {}, []
        for _ in range(keys):
            key = self.text()
            begin = self.at
            self.skip(self.number())
            self.keys[key.decode()] = data[begin : self.at]
        for _ in range(tensors):
            begin = self.at
            self.text()
            count = self.number()
            self.at += 8 * count + 12
            self.tensors.append(data[begin : self.at])

    def number(self):
        self.at += 4
        return struct.unpack_from("<I", self.data, self.at - 4)[0]

    def long(self):
        self.at += 8
        return struct.unpack_from("<Q", self.data, self.at - 8)[0]

    def text(self):
        length = self.long()
        self.at += length
        return self.data[self.at - length : self.at]

    def skip(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            of, count = self.number(), self.long()
            if of in (8, 9):
                for _ in range(count):
                    self.skip(of)
            else:
                self.at += count * self.FIXED[of]
        else:
            self.at += self.FIXED[kind]

    def header(self, keys, with_tensors):
        kept = {key: value for key, value in self.keys.items() if keys(key)}
        tensors = self.tensors if with_tensors else []
        head = b"GGUF\x03\0\0\0" + struct.pack("<QQ", len(tensors), len(kept))
        return head + b"".join(text(key.encode()) + value for key, value in kept.items()) + b"".join(tensors)


def opened(path):
    return gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()


def gguf():
    models = sorted((FIXTURES / "reference").glob("*.gguf")) + [ROOT / "packaging/demo/bard-q8_0.gguf"]
    # Two files of each family, written by `target/release/family make target/families` (2 GB; `.ci/models` builds it).
    for which in ("ordinary-q8_0", "awkward-q4_k_m"):
        models += sorted((ROOT / "target/families").glob(f"*-{which}.gguf"))
    for path in models:
        header = Gguf(opened(path)).header(lambda key: not key.startswith("tokenizer.ggml."), True)
        write("gguf", path.stem, header)


class Vocabulary:
    """A vocabulary of a GGUF header, to be cut to fit the length limit of an input."""

    FIRST, LAST, MERGES = 290, 14, 30

    def __init__(self, header):
        self.keys = header.keys
        self.count = len(self.list("tokens"))
        self.kept = [*range(min(self.FIRST, self.count)), *range(max(self.FIRST, self.count - self.LAST), self.count)]

    def list(self, key):
        """The elements of a list, each as its bytes."""
        value = self.keys["tokenizer.ggml." + key]
        (of, count), at, elements = struct.unpack_from("<IQ", value, 4), 16, []
        for _ in range(count):
            length = 8 + struct.unpack_from("<Q", value, at)[0] if of == 8 else Gguf.FIXED[of]
            elements.append(value[at : at + length])
            at += length
        return elements

    def cut(self):
        """The keys of a smaller vocabulary: the first tokens, the last ones, and merges of these."""
        keys, tokens = {}, self.list("tokens")
        texts = {tokens[place][8:] for place in self.kept}
        for key, value in self.keys.items():
            name = key.removeprefix("tokenizer.ggml.")
            if name in ("tokens", "scores", "token_type"):
                whole = self.list(name)
                value = value[:8] + struct.pack("<Q", len(self.kept)) + b"".join(whole[place] for place in self.kept)
            elif name == "merges":
                merges = [one for one in self.list(name) if one[8:].replace(b" ", b"") in texts][: self.MERGES]
                value = value[:8] + struct.pack("<Q", len(merges)) + b"".join(merges)
            elif name.endswith("_token_id"):
                before = struct.unpack_from("<I", value, 4)[0]
                value = value[:4] + struct.pack("<I", self.kept.index(before) if before in self.kept else 0)
            keys[key] = value
        return keys


def tokenizer():
    texts = [b"Hello world, 1 + 1 = 2!\n\n  \t\xc3\x84rger \xf0\x9f\xa6\x99 don't <s></s><|im_end|>", b" a", b"\r\n x"]
    rules = (ROOT / "shared/tokenizer/src/pretokenizer.rs").read_text()
    # One name for each pre-tokenizer.
    names = {rule: name for name, rule in re.findall(r'\("([^"]+)", &(\w+)\),', rules)}.values()
    for path in sorted((FIXTURES / "vocab/parts").glob("*.gguf.gz")):
        header = Gguf(opened(path))
        header.keys = Vocabulary(header).cut()
        name = path.name.split(".")[0]
        for pre in [None, *(names if name == "gpt-2" else ())]:
            if pre:
                header.keys["tokenizer.ggml.pre"] = struct.pack("<I", 8) + text(pre.encode())
            whole = header.header(lambda key: key.startswith(("tokenizer.", "general.name")), False)
            write("tokenizer", name if pre is None else f"{name}-{pre}", whole + b"\0TEXT\0" + texts[0])
    for which in range(3):
        for place, one in enumerate(texts):
            write("tokenizer", f"stored-{which}-{place}", bytes([which]) + one)


def templates():
    conversations = json.loads((FIXTURES / "templates/conversations.json").read_text())
    for path in sorted((FIXTURES / "templates").glob("*.jinja")):
        for flags in range(4):
            write("template", f"{path.stem}-{flags}", bytes([flags]) + path.read_bytes())
        for name, chat in conversations.items():
            parts = [path.read_bytes(), json.dumps(chat["messages"], ensure_ascii=False).encode()]
            if "tools" in chat:
                parts.append(json.dumps(chat["tools"], ensure_ascii=False).encode())
            write("template", f"{path.stem}-{name}", bytes([1 if "tools" in chat else 0]) + b"\0".join(parts))
    write_all("template", "part", variants.templates(), b"\1")
    chat = conversations[max(conversations, key=lambda name: len(json.dumps(conversations[name])))]
    shown = b"{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ a }}\0"
    for key in ("messages", "tools"):
        changed = variants.json_texts(chat.get(key) or TOOLS)
        write_all("template", key, changed, b"\1" + shown + (b"\0" if key == "tools" else b""))
    write_all("template", "variables", variants.json_texts({"a": {"b": [1]}}), b"\1" + shown + b"\0\0")


# Answers in the order of the formats in fuzz_targets/answer.rs.
ANSWERS = [
    "plain text",
    '{"name": "f", "parameters": {"a": "x", "b": 1}}',
    'a<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>',
    "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>b</arg_key><arg_value>1</arg_value>\n</tool_call>",
    "<|tool_call_start|>[f(a=\"x\", b=1, c=[True, None, {'d': 2.5}]), g()]<|tool_call_end|>",
    "<function_calls>\nf(a=\"x\")\ng(b=1)\n</function_calls>",
    '<|tool_call>call:f{a:<|"|>x<|"|>,b:1,c:[{d:true}]}<tool_call|>',
    '<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "x"}<|call|><|start|>assistant<|channel|>final<|message|>done<|return|>',
    '[TOOL_CALLS]f[ARGS]{"a": "x"}[TOOL_CALLS][{"name": "f", "arguments": {"b": 1}}]',
    '<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}]functools[{"name": "f", "arguments": {}}]',
    '<TOOLCALL>[{"name": "f", "arguments": {"a": "x"}}]</TOOLCALL>',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
]


def answers():
    for place, answer in enumerate(ANSWERS):
        for flags in (0x01, 0x11, 0x21, 0x0F):
            thought = "<think>why not</think>\n" if flags >> 4 == 1 else "hm</think>" if flags >> 4 == 2 else ""
            write("answer", f"{place}-{flags}", bytes([place, flags, 3]) + (thought + answer).encode())
    # Arguments in other forms, and tools whose schemas become grammars.
    for place, answer in enumerate(ANSWERS):
        old = next((old for old in ('"x"', '<|"|>x<|"|>', "\nx\n", ">x<", '{"a": 1}') if old in answer), None)
        if old:
            changed = (answer.replace(old, old.replace("x", one) if old[0] in "\n>" else one, 1) for one in variants.JSON + variants.LITERALS)
            write_all("answer", f"argument-{place}", changed, bytes([place, 1, 3]))
    schemas = (one for schema in SCHEMAS for one in (schema, {"type": "object", "properties": {"a": schema, "b": {"type": "string"}}, "required": ["b"]}))
    changed = [text for schema in schemas for text in variants.json_texts([{"name": "f", "parameters": schema}])]
    for place, one in enumerate(dict.fromkeys(changed)):
        for format in (place % len(ANSWERS), (place + 5) % len(ANSWERS)):
            write("answer", f"tools-{place}-{format}", bytes([format, [1, 3, 5, 11][place % 4], 3]) + ANSWERS[format].encode() + b"\0" + one.encode())
    for place, answer in enumerate(ANSWERS):
        write("conversation", f"answer-{place}", bytes([place * 2 + 1]) + answer.encode())
    chat = {"version": 1, "id": "a-1", "title": "t", "system": "s", "changed_ms": 5, "turns": [
        {"prompt": "p", "answer": {"model": "m", "thought": "t", "text": "x", "figures": "f", "failure": "no"}},
        {"prompt": "q"}]}
    write("conversation", "stored", b"\0" + json.dumps(chat).encode())
    write_all("conversation", "changed", variants.json_texts(chat), b"\0")


SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{1,3}$"}, "b": {"type": "integer", "minimum": -5, "maximum": 70}}, "required": ["a"], "additionalProperties": False},
    {"anyOf": [{"const": 1}, {"enum": ["x", None, True]}, {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}]},
    {"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
    {"type": ["string", "null"], "format": "date-time", "minLength": 2, "maxLength": 9},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}}, {"required": ["a"]}], "oneOf": [{"type": "object"}]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "uniqueItems": True},
    {"type": "object", "patternProperties": {"^x-": {"type": "number", "multipleOf": 0.5}}, "minProperties": 1, "not": {"type": "null"}},
]


def schemas():
    for place, schema in enumerate(SCHEMAS):
        for flags in (0, 3, 0x13, 0x23, 0x33, 0x43, 0x53, 0x63, 0x73, 5):
            write("grammar", f"{place}-{flags}", bytes([flags]) + json.dumps(schema).encode())
        write_all("grammar", f"{place}-changed", variants.json_texts(schema), b"\0")


def messages():
    kinds = {"Request": 0, "Response": 3, "Hello": 6, "Welcome": 7, "Beat": 8, "KvRequest": 8, "KvResponse": 9, "Adopt": 9, "Adopted": 9}
    seen = set()
    test = ["cargo", "test", "-q", "-p", "bramble-protocol", "--lib", "messages_of_every_variant_and_model"]
    with tempfile.NamedTemporaryFile("r") as file:
        subprocess.run(test, cwd=ROOT, check=True, env=os.environ | {"BRAMBLE_SEEDS": file.name})
        lines = file.read().splitlines()
    for place, (name, version, data) in enumerate(line.split(" ") for line in lines):
        write("messages", f"{name}-{version}-{place}", bytes([kinds[name], int(version) - 4]) + bytes.fromhex(data))
        # The description of a model is JSON, the last part of its message, behind two bytes of its length.
        begin = bytes.fromhex(data).find(b'{"name"')
        if int(version) > 4 and begin > 0:
            head, text = bytes.fromhex(data)[: begin - 2], bytes.fromhex(data)[begin:]
            for which, one in enumerate(variants.json_texts(json.loads(text), ("null", "-1", "1.5e3", '"x"', "[]", "{}"), seen)):
                changed = head + number(len(one.encode())) + one.encode()
                write("messages", f"model-{place}-{which}", bytes([kinds[name], int(version) - 4]) + changed)
    for line in (FIXTURES / "wire-4/messages.txt").read_text().splitlines():
        name, place, data = line.split()
        if name == "Hello":
            write("handshake", f"hello-{place}", b"\1\0" + struct.pack("<I", len(data) // 2) + bytes.fromhex(data))
    for preamble in (b"BRAMBLE\n\x04\0\x0e\0\0\0\0\0", b"BRAMBLE\n\x04\0\x0e\0\x01\x01\x03\x02", b"BRAMBLE\n\x04\0\x0e\0\x02\x02\x02\x01"):
        for flags in (0, 1):
            write("handshake", f"preamble-{preamble[12]}-{flags}", bytes([0, flags]) + preamble + b"payload")
    for seed in range(0, 256, 23):
        write("handshake", f"link-{seed}", bytes([2, seed]) + b"\x05\0\0\0hello")
    write("handshake", "code", b"\3\0" + b"1234-5678\0" + bytes(33) + b"\0" + b"07" * 32)
    write("handshake", "announcement", b"\4\0pi1\x000.1.0\x001\0")
    write("handshake", "wrapped", b"\5\0" + bytes(32) + bytes([52]) + bytes(52))


TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMAS[0]}}]
USER = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["x", "y"], "max_tokens": 9, "frequency_penalty": 0.5, "presence_penalty": 0.5, "repeat_penalty": 1.1, "logit_bias": {"5": -3}, "n": 2, "logprobs": True, "top_logprobs": 3, "stream": True, "stream_options": {"include_usage": True}, "user": "u"}
BODIES = [
    (0, {"model": "m", "prompt": "once", "echo": True, **{k: v for k, v in SAMPLING.items() if "logprobs" not in k}, "stream": False}),
    (0, {"prompt": [[1, 2], [3]], "logprobs": 2}),
    (0, {"prompt": ["a", "b"], "guided_json": SCHEMAS[0], "max_tokens": 0, "echo": True}),
    (1, {"model": "m", "messages": USER, **SAMPLING}),
    (1, {"messages": USER + [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]}, {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "7"}]}], "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}),
    (1, {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMAS[1]}}, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}, "thinking_budget": 5}),
    (1, {"messages": USER, "functions": [TOOLS[0]["function"]], "function_call": {"name": "f"}, "stream": True}),
    (1, {"messages": USER + [{"role": "assistant", "content": "It"}], "continue_final_message": True, "add_generation_prompt": False, "response_format": {"type": "json_object"}}),
    (1, {"messages": USER, "structured_outputs": {"json": SCHEMAS[2]}, "speculative.n_max": 3, "ignore_eos": True, "cache_prompt": True}),
    (2, {"model": "m", "system": [{"type": "text", "text": "S"}], "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "tool_result", "tool_use_id": "t", "content": "r"}]}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": "s"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]}], "tools": [{"name": "f", "description": "d", "input_schema": SCHEMAS[0]}], "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["x"], "stream": True}),
    (2, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "output_config": {"format": {"type": "json_schema", "schema": SCHEMAS[0]}}, "thinking": {"type": "disabled"}}),
    (3, {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "7"}, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, {"type": "item_reference", "id": "i"}], "instructions": "S", "tools": [{"type": "function", "name": "f", "parameters": SCHEMAS[0], "strict": True}], "tool_choice": {"type": "function", "name": "f"}, "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMAS[0]}}, "reasoning": {"effort": "low"}, "max_output_tokens": 5, "store": True, "stream": True, "metadata": {"a": "b"}}),
    (3, {"input": "a", "previous_response_id": "resp_1", "truncation": "auto"}),
    (3, {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "7"}], "instructions": "S", "tools": [{"type": "function", "name": "f", "parameters": SCHEMAS[0]}], "reasoning": {"effort": "low"}, "max_output_tokens": 5, "stream": True}),
    (3, {"input": "a", "stream": True, "store": False, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
    (3, {"input": "a", "store": False}),
    (4, {"model": "m:latest", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "content": "7", "tool_name": "f"}], "tools": TOOLS, "format": SCHEMAS[0], "think": True, "options": {"num_predict": 5, "temperature": 0, "stop": ["x"]}, "keep_alive": "5m", "stream": False}),
    (4, {"model": "m", "messages": [], "think": "high"}),
    (5, {"model": "m", "prompt": "a", "system": "S", "suffix": "", "raw": True, "format": "json", "images": []}),
    (5, {"model": "m"}),
    (5, {"model": "m", "prompt": "a", "template": "x", "options": {"num_ctx": 8, "repeat_penalty": 1.1}}),
    (6, {"model": "m", "verbose": True}),
    (7, {"prompt": "a", "n_predict": 5, "n_probs": 2, "json_schema": SCHEMAS[0], "logit_bias": [[5, -1.0], ["x", False]], "stream": True, "return_tokens": True, "samplers": ["top_k"], "post_sampling_probs": False}),
    (7, {"prompt": [1, "a"], "grammar": "root ::= x", "n_predict": 0}),
    (7, {"prompt": "a", "n_predict": 5, "n_probs": 2, "logit_bias": [[5, -1.0]], "stream": True, "return_tokens": True}),
    (7, {"prompt": [1, 2], "n_predict": 5, "json_schema": SCHEMAS[0], "stop": ["x"], "cache_prompt": True, "temperature": 0.5}),
    (8, {"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8}),
    (8, {"input": [[1, 2], [3]], "truncate": True}),
    (9, {"model": "m", "messages": [{"role": "user", "content": "a"}], "system": "S", "tools": [{"name": "f", "input_schema": SCHEMAS[0]}]}),
    (10, {"content": "a", "add_special": True, "with_pieces": True}),
    (10, {"prompt": "a", "add_special_tokens": False, "return_token_strs": True}),
    (10, {"messages": USER, "tools": TOOLS}),
    (11, {"tokens": [1, 2, 3]}),
    (12, {"messages": USER, "chat_template_kwargs": {"a": 1}}),
    (13, {"model": "hf:o/r:m.gguf", "stream": False, "insecure": False}),
]
HEADS = [
    ("GET", "/v1/models/", ["host: pi1:9980", "authorization: Bearer a key of a client"]),
    ("POST", "//v1//chat/completions?x=1", ["host: localhost:9980", "content-type: application/json", "origin: https://chat.example", "sec-fetch-site: cross-site", "x-api-key: k"]),
    ("OPTIONS", "/v1/messages", ["host: api.example", "origin: https://chat.example", "access-control-request-method: POST", "access-control-request-headers: authorization", "access-control-request-private-network: true"]),
    ("POST", "/openai/v1/completions", ["host: [::1]:9980", "content-type: text/plain"]),
    ("POST", "/api/chat", ["host: 10.0.0.1"]),
    ("GET", "http://pi1.local/ui/page.js", ["origin: http://pi1.local"]),
]


def http():
    seen = {}
    for place, (api, body) in enumerate(BODIES):
        for flags in (0, 2 | 64, 4 | 16, 32 | 1, 128 | 3):
            answer = ANSWERS[[0, 1, 2, 3, 8, 9][flags % 6]].encode()
            write("http", f"{place}-{flags}", bytes([api, flags, 5]) + json.dumps(body).encode() + b"\0" + answer)
        write_all("http", f"{place}-changed", variants.json_texts(body, seen=seen.setdefault(api, set())), bytes([api, 0, 5]))
    for place, (method, target, headers) in enumerate(HEADS):
        parts = [target.encode(), method.encode(), *(header.encode() for header in headers)]
        write("http", f"head-{place}", bytes([14, 0, 0]) + b"\0".join(parts))
    event = 'data: {"id":"c","model":"m","choices":[{"delta":{"content":"a"},"finish_reason":"stop","logprobs":{}}],"usage":{},"timings":{}}\n\n: note\ndata: [DONE]\n\n'
    chunk = f"{len(event):x}\r\n{event}\r\n0\r\na: b\r\n\r\n"
    usual = json.loads(event.split("\n")[0].removeprefix("data: "))
    events = (f"HTTP/1.1 200 OK\r\n\r\ndata: {one}\n\n" for one in variants.json_texts(usual))
    write_all("http_client", "event", events, b"\0\7")
    responses = [
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunk,
        f"HTTP/1.1 200 OK\r\ncontent-length: {len(event)}\r\nconnection: close\r\n\r\n{event}",
        f"HTTP/1.0 503 no\r\nretry-after: 2\r\n\r\n{event}",
        "HTTP/1.1 204 No Content\r\n\r\n",
        'HTTP/1.1 200 OK\r\n\r\ndata: {"error":{"code":"c","message":"m"}}\r\n\r\n',
    ]
    for place, response in enumerate(responses):
        for piece in (1, 7):
            write("http_client", f"response-{place}-{piece}", bytes([0, piece]) + response.encode())
    for place, (method, target, headers) in enumerate(HEADS):
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{header}\r\n" for header in headers) + "\r\n"
        write("http_client", f"request-{place}", b"\2\0" + head.encode())
    digest = "ab" * 32
    downloads = [
        ["https://h/o/r/resolve/main/m.gguf", f"302\nlocation: https://cdn/x\nx-linked-etag: \"{digest}\"\nx-linked-size: 100", "206\ncontent-range: bytes 0-0/100\netag: \"e\""],
        ["http://h/m", "301\nlocation: /n", "308\nlocation: //g/n", "200\ncontent-length: 9"],
        ["https://h/m", "302\nlocation: http://h/m"],
        ["https://h/m", "404"],
        ["https://h/m", "206\ncontent-range: bytes 0-0/*"],
    ]
    for place, download in enumerate(downloads):
        write("http_client", f"download-{place}", b"\3\0" + b"\0".join(part.encode() for part in download))
    for place, name in enumerate(["hf:o/r:m.gguf", "http://[::1]:80/v1/", "qwen3:q8_0", "m-00001-of-00002.gguf", "https://h/a/m.gguf?x"]):
        write("http_client", f"name-{place}", b"\4\0" + name.encode())


TOPOLOGY = """model = "m.gguf"
context_length = 4096
slots = 4
kv = "q8_0"
exchange = "f16"
collective = "auto"
unload_after_s = 60
draft = "d.gguf"
[[stage]]
replica = 0
role = "prefill"
layers = 4
nodes = ["a:1", "b"]
weights = [1, 2]
[[stage]]
replica = 1
role = "decode"
layers = 4
nodes = ["c"]
"""
PACED = "[paced]\nmacs_per_second = 1e9\nbytes_per_second = 1e9\n"
CONFIG = """listen = "127.0.0.1:9999"
name = "pi1"
models = ["/srv"]
http = "0.0.0.0:9980"
api_keys = ["0123456789abcdef0123456789abcdef"]
http_hosts = ["a.example"]
http_origins = ["https://a.example", "*"]
peers = ["10.0.0.1:9999"]
kv_store = "on"
kv_store_max_mib = 5
data_links = "authenticated"
witness = "10.0.0.2:9999"
exclude_after_ms = 0
threads = 3
"""
KEYS = '[cluster]\n"ctrl-x" = "quit"\n[keys]\nq = "help"\n'
CLUSTERS = 'default = "home"\n[cluster.home]\nnodes = ["a", "b:1"]\nkey = "/k"\n[cluster.work]\nnodes = ["c"]\n'


def commands():
    """Texts of the console's command line."""
    code = (ROOT / "console/src/state/command.rs").read_text().split("#[cfg(test)]")[0]
    words = [*re.findall(r'^    (?:    )?\("(\w+)", ', code, re.MULTILINE), *literals("console/src/keymap/*.rs", most=24)]
    yield from words
    for word in words:
        yield f"{word} pi2"
        yield f"{word}x"
    for page in range(12):
        yield f"page {page}"
    for form in ("csv", "json", "text", "txt", "svg", "markdown", "md", "pdf"):
        yield f"export {form}"
        yield f"export {form} a.{form}"
    for theme in ("sixteen", "dark", "light", "high-contrast", "mono", "none"):
        yield f"theme {theme}"
    yield from ("sort", "sort name", "sort name down", "sort name up", "record stop", "filter !a", "filter ~a.*", "filter ~[", "load")


def files():
    known = re.findall(r'name: "([^"]+)"', (ROOT / "shared/models/src/known/mod.rs").read_text())
    write_all("files", "known", known, b"\5")
    write_all("files", "command", commands(), b"\5")
    keys = re.findall(r"^    ([a-z_]+): Option", (ROOT / "daemon/src/config/mod.rs").read_text(), re.MULTILINE)
    write_all("files", "setting", (one for key in keys for one in variants.toml(f"{key} = 1\n")), b"\0")
    for which, whole in ((0, CONFIG), (0, PACED), (1, TOPOLOGY), (2, CLUSTERS), (3, KEYS)):
        write_all("files", f"changed-{which}-{len(whole)}", variants.toml(whole), bytes([which]))
    write("files", "config", b"\0" + CONFIG.encode())
    write("files", "packaged", b"\0" + (ROOT / "packaging/bramble.toml").read_bytes())
    write("files", "paced", b"\0" + PACED.encode())
    write("files", "topology", b"\1" + TOPOLOGY.encode())
    write("files", "clusters", b"\2" + CLUSTERS.encode())
    write("files", "keys", b"\3" + KEYS.encode())
    digits = "07" * 32
    write("files", "key", b"\4# a comment\nsecret " + digits.encode() + b"\nsecret " + digits.encode() + b" until 1800000000\noperator " + digits.encode() + b"\n")
    for place, word in enumerate(["dp2-pp3-tp4", "tp3,2", "prefill:tp4+decode:tp2", "q4_k_m", "f16", "auto", "ring", "000000160000000400000020", "ab" * 16, "tinyllama-1.1b", ":quit", "export trace a.json", "page sync", "filter x"]):
        write("files", f"word-{place}", b"\5" + word.encode())
    write("kv_store", "names", b"\0" + b"\0".join(["-".join(["ab" * 16, "000000160000000400000020", "cd" * 16]).encode(), b"content", ("ab" * 16 + ".part").encode(), b"x", b"other", b""]))
    write("kv_store", "file", b"\2" + bytes(60) + b"payload")
    write("kv_store", "parts", b"\3000000160000000400000020\000000000b0000000400000020\0000b00160000000400000020")


GROUPS = 8


def topology(stages=1, ranks=2):
    """A topology as JSON."""
    count = stages * ranks
    return {
        "layout": {"replicas": 1, "stages": stages, "ranks": ranks, "groups": [{"role": "both", "ranks": 0}] * GROUPS},
        "members": [
            {"name": f"n{n}", "address": f"10.0.0.{n}:9999", "weight": 1, "layers": {"start": n // ranks * 2, "end": n // ranks * 2 + 2}, "cores": [n], "threads": 1, "spin": False}
            for n in range(count)
        ],
        "model": "m.gguf", "identity": list(range(32)), "kv": "f16", "exchange": "f32", "collective": "auto",
        "context_length": 512, "slots": 2, "content": [7] * 32, "unload_after": 60,
        "draft": {"model": "d.gguf", "identity": [1] * 32, "content": [2] * 32, "weights": 5, "block": 6},
    }


def toml(value):
    """A value in TOML's inline form, without what is null."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items() if one is not None) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    return json.dumps(value)


def records():
    one = {key: value for key, value in topology().items() if key not in ("unload_after", "draft")}
    committed = {"epoch": 7, "topology": one, "desired": topology(2, 1) | {"draft": None}}
    parts = [
        f'epoch = 7\nhash = "0"\ntopology = {toml(one)}\n',
        'epoch = 8\ntopology = "00ff"\n',
        f"promised = {{ round = 2, member = 1 }}\nbase = {toml(committed)}\naccepted = {{ ballot = {{ round = 1, member = 0 }}, next = {toml(committed)} }}\n",
        '[[node]]\nnode = "n1"\naddress = "a:1"\nreason = "r"\nby = "me"\nrevision = 3\nis_cordon = true\n',
        f"epoch = 7\ntopology = {toml(topology(2, 1) | {'draft': None})}\n",
        'targets = [["n0", "a:1"]]\ndone = 0\nbefore = 5\nphase = "runs"\ndrain_ms = 100\nby = "me"\nrevision = 2\n',
        "votes = { up-to = 7 }\n",
        'epoch = 6\ntopology = "00ff"\n',
        'addresses = ["10.0.0.1:9999", "n2:1"]\n',
        f"group = [{{ promised = {{ round = 2, member = 1 }}, base = {toml(committed)} }}]\n",
    ]
    for flags in (0, 1):
        write("state", f"all-{flags}", bytes([flags]) + b"\0".join(part.encode() for part in parts))
    for place in range(len(parts)):
        left = [part if other == place else "" for other, part in enumerate(parts)]
        write("state", f"only-{place}", b"\0" + b"\0".join(part.encode() for part in left))
        changed = (b"\0".join(one.encode() if other == place else b"" for other in range(len(parts))).decode() for one in variants.toml(parts[place]))
        write_all("state", f"changed-{place}", changed, b"\0")
    write("state", "lost", b"\0" + b"\0".join(part.encode() for part in parts[:2] + ["x"] + parts[3:]))


def rows(values):
    """A list of rows of numbers and flags in postcard's form."""
    return number(len(values)) + b"".join(number(int(value)) for row in values for value in row)


def plan(opened=(), closed=(), blocks=(), windowed=(), copies=(), states=(), entries=()):
    """A plan of a step; `opened`: slot, cached tokens, prompt."""
    # Temperature, top_k, top_p, min_p, three penalties, penalty_last_n, logit_bias, seed, logprobs, two flags.
    sampling = struct.pack("<f", 0.8) + number(40) + struct.pack("<5f", 0.9, 0.05, 1.1, 0.0, 0.0) + number(64) + bytes([0]) + number(7) + bytes([0, 0, 0])
    begins = b"".join(number(slot) + sampling + number(cached) + rows([[id] for id in prompt]) + bytes([0]) for slot, cached, prompt in opened)
    lists = [rows([[slot] for slot in closed]), *map(rows, (blocks, windowed, copies, states, entries))]
    return bytes([1, int(bool(opened)), 0]) + number(len(opened)) + begins + b"".join(lists)


def plans():
    one, two = [1, 2, 3, 4, 5], list(range(10, 50))
    for flags in range(8):
        windowed = flags & 1
        steps = [
            plan(opened=[(0, 0, one)], blocks=[(0, 3)], windowed=[(0, 0, 2)] * windowed, entries=[(0, place, id, place == 4) for place, id in enumerate(one)]),
            plan(entries=[(0, 5, 17, True)]),
            plan(entries=[(0, 6 + place, 20 + place, True) for place in range(3)]),
            plan(opened=[(1, 32, two)], blocks=[(1, 3), (1, 4)], windowed=[(1, 0, 2), (1, 1, 3)] * windowed, copies=[(3, 5)], states=[(0, 1)] if flags & 2 else [], entries=[(0, 7, 30, True), *((1, 32 + place, two[32 + place], False) for place in range(8))]),
            plan(closed=[0], entries=[(1, 40, 51, True)]),
        ]
        if flags & 4:
            # Every second plan is a step of the draft model.
            draft = plan(entries=[(0, 5, 60, True), (0, 6, 61, True)])
            steps = [steps[0], draft, steps[1], draft, steps[2]]
        write("frames", f"plans-{flags}", bytes([1, flags]) + b"".join(struct.pack("<H", len(step)) + step for step in steps))
        write("frames", f"first-{flags}", bytes([1, flags]) + struct.pack("<H", len(steps[0])) + steps[0])


def recordings():
    sampling = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "penalty_last_n": 64, "logit_bias": [], "seed": 0, "logprobs": 0, "scores_prompt": False, "embeds": False}
    header = {"bramble_recording": 1, "build": "0", "started_unix_ms": 1800000000000, "nodes": ["n0:9999", "n1:9999"], "wanted": None, "prompt": "p", "defaults": {"max_tokens": 9, "sampling": sampling, "stop": []}}
    one = topology()
    health = {key: None for key in ("temperature", "clock", "firmware", "is_voltage_low", "memory", "disk", "link", "tcp", "load", "run_queue", "is_time_synchronized", "page")}
    rows = [[layer, kind, 4, 9, 9, 9, 5, 3, 1, 1] for layer in range(2) for kind in range(2)]
    report = {"name": "n0", "instance": 1, "supervised": True, "unix_ms": 1800000000000, "build": "0", "kernels": "k", "state": "ready", "epoch": 7, "topology": [one, 5, 0], "fault": None, "load": None, "shard": 5, "memory_resident": 6, "requests": 0, "traces": [], "tokens": 9, "kv": {"held": 1, "kept": 2, "total": 9}, "lateness": [], "collectives": None, "exclusions": [], "recovers": True, "rolling": None, "layers": rows, "health": health}
    identity = {"name": "n0", "build": "0", "numeric": 3, "machine": "m", "cores": [0]}
    key = lambda letter: {"Key": {"code": {"Char": letter}, "control": False, "alt": False, "shift": False}}
    fault = {"node": "n1", "kind": "NotHead"}
    events = [
        {"Client": {"Connected": {"node": 0, "identity": identity}}},
        None,
        {"Client": {"Assign": "Committing"}},
        {"Client": {"Assign": {"Running": {"epoch": 7, "topology": one, "reused": True}}}},
        {"Client": {"Generate": {"Started": {"prompt_token_ids": [1, 2]}}}},
        {"Client": {"Generate": {"Token": {"id": 5, "text": "a\u00e4", "logprobs": [{"id": 5, "text": "a", "logprob": -1.0, "bytes": []}]}}}},
        {"Client": {"Operate": {"Told": {"node": "n1", "out": True}}}},
        {"Client": {"Generate": {"Waits": {"fault": fault, "seconds": 5}}}},
        {"Client": {"Generate": {"Moved": {"fault": fault, "epoch": 8, "topology": one, "head": 1}}}},
        {"Client": {"Generate": {"Failed": fault}}},
        *({"Client": {"Operate": {"Restart": {"node": 1, "step": step}}}} for step in ("Draining", {"Done": {"seconds": 2.5}})),
        {"Client": {"Operate": {"Rolled": {"targets": [["n0", "n0:9999"], ["n1", "n1:9999"]], "done": 1, "before": 5, "phase": "runs", "drain_ms": 100, "by": "me", "revision": 2}}}},
        {"Client": {"Operate": {"Said": {"node": "n1", "address": "n1:9999", "reason": "r", "by": "me", "revision": 3, "is_cordon": False}}}},
        {"Client": {"Operate": {"Excluded": {"node": "n1", "out": True, "running": [9, one]}}}},
        {"Client": {"Operate": {"Cordoned": {"node": "n1", "drained": True}}}},
        {"Client": {"Operate": {"WaitsForRequests": {"count": 3}}}},
        {"Client": {"Operate": {"Refused": fault}}},
        {"Client": {"Operate": {"Assign": {"Loading": {"node": 1, "progress": {"done": 3, "total": 9}}}}}},
        {"Client": {"Disconnected": {"node": 1, "fault": fault}}},
        {"Client": {"Log": {"node": 0, "answer": {"Err": fault}}}},
        {"Client": {"Models": {"node": 0, "answer": {"Ok": []}}}},
        {"Paste": "text"}, {"Said": "note"}, {"Signal": "Interrupt"}, {"Mouse": {"kind": "Click", "x": 3, "y": 4}},
        {"Recording": {"Began": {"file": "f"}}}, {"Tour": {"step": 2, "is_done": False}}, "Resize",
        *[key(letter) for letter in "123456789?:/fdtjkq"],
    ]
    lines, at = [header], 1000
    for event in events:
        lines.append({"us": at, "node": 0, "report": report} if event is None else {"us": at, "event": event})
        at += 400000
    lines.append({"us": at, "node": 0, "report": {"tokens": 10, "state": "serving"}})
    lines.append({"us": at, "node": 0, "report": report, "lost": 1})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for size in range(4):
        write("recording", f"all-{size}", bytes([size]) + text.encode() + b"\0KEYS\0" + b"12345\x809?:q\x81")
    for place, line in enumerate(lines[1:]):
        write("recording", f"one-{place}", b"\0" + (json.dumps(header) + "\n" + json.dumps(line) + "\n").encode())
    # Forms that a file of ours does not have. Playing a recording is slow: few of them.
    seen = set()
    for place, line in enumerate(lines):
        changed = variants.json_texts(line, ("null", "-1", "1.5e3", '"x"', "[]", "{}"), seen)
        others = ((one, lines[1]) if place == 0 else (header, one) for one in changed)
        texts = ("".join((part if isinstance(part, str) else json.dumps(part)) + "\n" for part in both) for both in others)
        write_all("recording", f"changed-{place}", texts, b"\0")
    # A recording of `console demo`, cut to one or two events of each kind: a running topology, with keys that operate it.
    demo = (ROOT / "fuzz/recordings/demo.jsonl").read_bytes()
    for place, keys in enumerate([b"1jx\x84y\x84", b"1jjR\x84yA\x84y", b"1jc\x84y1jd\x84y", b"1s/pi2\x84\x85", b"8jM\x84y\x848jp\x84", b"1mEe?j?e", b"9hi\x84\x85", b"2jr\x84", b"3jj4ia\x84", b":exclude pi2\x84y", b":restart\x84y", b":record\x84", b":export csv\x84", b":assign tp2\x84y", b"1:filter pi3\x84", b"567jk\x81\x82"]):
        write("recording", f"demo-{place}", bytes([place]) + demo + b"\0KEYS\0\x85\x86" + keys)


def literals(*patterns, least=3, most=40):
    """Texts in the sources of a parser."""
    found = set()
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            code = path.read_text().split("#[cfg(test)]")[0]
            code = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("//"))
            for one in re.findall(r'"((?:[^"\\\n]|\\.)*)"', code):
                one = one.replace('\\"', '"').replace("\\n", "\n")
                if least <= len(one) <= most and "{}" not in one and not re.search(r"[a-z] [a-z]+ [a-z]", one):
                    found.add(one)
    return sorted(found)


def entry(data):
    shown = "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in data)
    return f'"{shown}"\n'


def dictionaries():
    """Words of each format, so that mutations need not guess them."""
    folder = ROOT / "fuzz/dictionaries"
    folder.mkdir(exist_ok=True)
    words = {
        "gguf": literals("shared/models/src/families/*.rs", "shared/models/src/keys.rs", "shared/models/src/names.rs", "shared/gguf/src/file.rs"),
        "tokenizer": literals("shared/tokenizer/src/vocabulary.rs", "shared/tokenizer/src/lib.rs", "shared/tokenizer/src/pretokenizer.rs"),
        "template": literals("shared/tokenizer/src/template/*.rs", least=2)
        + ["{%", "%}", "{{", "}}", "{%-", "-%}", "for ", "endfor", "if ", "endif", "else", "set ", "macro ", "endmacro", "namespace(", "messages", "message.role", "message['content']", "loop.first", "loop.index0", "tools", "add_generation_prompt", "|tojson", "|trim", "|upper", "raise_exception(", "strftime_now(", "is defined", "is string", "[::-1]", ".split(", ".strip()", "selectattr(", "generation", "endgeneration", "filter ", "call ", "with ", "endwith", "include ", "range("],
        "answer": literals("shared/tokenizer/src/answer/*.rs", least=2) + ['"name"', '"arguments"', '"parameters"', "true", "null", "\\u00e4"],
        "grammar": ['"type"', '"object"', '"array"', '"string"', '"integer"', '"number"', '"boolean"', '"null"', '"properties"', '"required"', '"additionalProperties"', '"patternProperties"', '"propertyNames"', '"minProperties"', '"maxProperties"', '"items"', '"prefixItems"', '"minItems"', '"maxItems"', '"uniqueItems"', '"contains"', '"const"', '"enum"', '"anyOf"', '"oneOf"', '"allOf"', '"not"', '"if"', '"then"', '"else"', '"$ref"', '"$defs"', '"definitions"', '"#/$defs/a"', '"#"', '"$id"', '"$anchor"', '"pattern"', '"format"', '"date-time"', '"uuid"', '"ipv4"', '"minLength"', '"maxLength"', '"minimum"', '"maximum"', '"exclusiveMinimum"', '"exclusiveMaximum"', '"multipleOf"', '"x-guidance"', '"whitespace_flexible"', '"%regex"', '"lark"', "(?i)", "\\\\d+", "[^a-z]*", "{1,9}"],
        "http": literals("daemon/src/gateway/*.rs", "daemon/src/gateway/*/*.rs", least=2, most=32),
        "http_client": literals("console/src/http/*.rs", "console/src/http/api/*.rs", "daemon/src/store/offer.rs", "shared/common/src/browser.rs"),
        "files": literals("daemon/src/config/*.rs", "console/src/operator/topology_file.rs", "console/src/keymap/*.rs", "console/src/state/command.rs", "shared/protocol/src/noise/*.rs", most=24)
        + re.findall(r"^    ([a-z_]+): Option", (ROOT / "daemon/src/config/mod.rs").read_text(), re.MULTILINE),
        "recording": literals("console/src/recording/*.rs", least=2) + sorted(set(re.findall(r"pub ([a-z_0-9]+):", "".join(path.read_text() for path in (ROOT / "shared/telemetry/src").glob("*.rs"))))),
    }
    words["conversation"] = words["answer"]
    for name, found in words.items():
        (folder / f"{name}.dict").write_text("".join(entry(word.encode()) for word in dict.fromkeys(found)))


def main():
    dictionaries()
    for make in (gguf, tokenizer, templates, answers, schemas, messages, http, files, records, plans, recordings):
        make()
    for folder in sorted(CORPUS.iterdir()):
        if folder.is_dir():
            print(folder.name, sum(1 for _ in folder.iterdir()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
