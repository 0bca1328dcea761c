#!/usr/bin/env python3
"""The requests that Open WebUI sends, after its source (backend/open_webui/routers/{openai,ollama,tasks}.py and
retrieval/utils.py of 0.6 to 0.8): served.py python webui.py, with aiohttp, which it uses itself."""
import asyncio
import json
import os

import aiohttp

from checks import CALL, FAKE, KEY, MODEL, SCRIPTED, TOO_LONG, URL, Cancelled, check, run

ORIGIN = os.environ.get("BRAMBLE_ORIGIN", "")
OLLAMA = "bard-q8_0:latest"
USER = {"X-OpenWebUI-User-Name": "Ann%20O", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Email": "a@example.org", "X-OpenWebUI-User-Role": "admin"}
ASKED = [{"role": "user", "content": "Speak, Romeo."}]
WEATHER = {"town": {"type": "string"}, "days": {"type": "integer"}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": {"type": "object", "properties": WEATHER, "required": ["town", "days"]}}}
# Beginning and end of the prompts for the title, tags and follow-up questions of a chat.
TASK = '### Task:\nGenerate a concise title summarizing the chat history.\n### Output:\nJSON format: {{ "title": "your title here" }}\n### Chat History:\n<chat_history>\nUSER: {}\n</chat_history>'


def headers(key=KEY):
    return {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **USER, "X-OpenWebUI-Chat-Id": "c1"}


async def ask(method, path, body=None, url=URL, key=KEY, **more):
    """Status, headers and JSON of an answer."""
    async with aiohttp.ClientSession(trust_env=True) as session:
        data = None if body is None else json.dumps(body)
        async with session.request(method, url + path, data=data, headers={**headers(key), **more}) as answer:
            text = await answer.text()
            return answer.status, answer.headers, json.loads(text) if text else None


def asked(*arguments, **more):
    status, _, body = asyncio.run(ask(*arguments, **more))
    assert status == 200, (arguments, status, body)
    return body


async def lines(path, body, url=URL, most=None):
    """The content type and the lines of a stream; `most`: leaves it after so many."""
    async with aiohttp.ClientSession(trust_env=True) as session:
        answer = await session.post(url + path, data=json.dumps(body), headers=headers())
        assert answer.status == 200, await answer.text()
        found = []
        async for line in answer.content:
            found += [line.decode().strip()] if line.strip() else []
            if most and len(found) >= most:
                break
        answer.close()
        return answer.headers["Content-Type"], found


def events(found):
    assert found[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in found), found[-3:]
    return [json.loads(line[6:]) for line in found[:-1]]


@check
def connections_are_verified():
    assert asked("GET", "/v1/models")["data"][0]["id"] == MODEL
    assert asked("GET", "/api/version")["version"]


@check
def models_are_listed():
    assert [model["id"] for model in asked("GET", "/v1/models")["data"]] == [MODEL]
    tags, loaded = asked("GET", "/api/tags")["models"], asked("GET", "/api/ps")["models"]
    assert tags[0]["model"] == tags[0]["name"] == loaded[0]["name"] == OLLAMA, (tags, loaded)
    assert asked("POST", "/api/show", {"model": OLLAMA})["details"] is not None


@check
def chat_is_streamed_with_usage():
    body = {"model": MODEL, "messages": ASKED, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 16, "temperature": 0}
    kind, found = asyncio.run(lines("/v1/chat/completions", body))
    assert kind.startswith("text/event-stream"), kind
    chunks = events(found)
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text and chunks[-1]["usage"]["completion_tokens"] == 16, chunks[-1]


@check
def thoughts_and_calls_are_streamed_and_the_result_is_answered():
    more = {"model": FAKE, "stream": True, "tools": [TOOL]}
    user = {"role": "user", "content": CALL}
    _, found = asyncio.run(lines("/v1/chat/completions", {**more, "messages": [user]}, SCRIPTED))
    deltas = [choice["delta"] for chunk in events(found) for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas).strip() == "Hm.", deltas
    calls = {}
    # It joins calls by their index, and their arguments.
    for call in (call for delta in deltas for call in delta.get("tool_calls") or []):
        known = calls.setdefault(call["index"], {**call, "function": {"name": call["function"].get("name"), "arguments": ""}})
        known["function"]["arguments"] += call["function"].get("arguments") or ""
    assert list(calls) == [0] and json.loads(calls[0]["function"]["arguments"]) == {"town": "Oslo", "days": 2}, calls
    turns = [user, {"role": "assistant", "content": "", "tool_calls": [calls[0]]}, {"role": "tool", "tool_call_id": calls[0]["id"], "content": "Rain."}]
    _, found = asyncio.run(lines("/v1/chat/completions", {**more, "messages": turns}, SCRIPTED))
    said = "".join(choice["delta"].get("content") or "" for chunk in events(found) for choice in chunk["choices"])
    assert said == "The tool said: Rain.", said


@check
def title_tags_and_follow_ups_are_asked_for():
    for text, more in [('{"title": "Romeo"}', {"max_completion_tokens": 1000}), ('{"tags": ["Play"]}', {}), ('{"follow_ups": ["Why?"]}', {})]:
        body = {"model": FAKE, "messages": [{"role": "user", "content": TASK.format(f"SAY[[[{text}]]]")}], "stream": False, **more}
        answer = asked("POST", "/v1/chat/completions", body, url=SCRIPTED)["choices"][0]["message"]["content"]
        assert json.loads(answer) == json.loads(text), answer
    body = {"model": MODEL, "messages": [{"role": "user", "content": TASK.format("Speak, Romeo.")}], "stream": False, "max_completion_tokens": 24}
    assert asked("POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"]


@check
def ollama_chat_is_streamed_and_gives_a_title():
    body = {"model": OLLAMA, "messages": ASKED, "stream": True, "options": {"num_predict": 16, "temperature": 0, "num_ctx": 2048}, "keep_alive": "5m"}
    kind, found = asyncio.run(lines("/api/chat", body))
    parts = [json.loads(line) for line in found]
    assert kind.startswith("application/x-ndjson") and parts[-1]["done"] and parts[-1]["eval_count"] == 16, (kind, parts[-1])
    assert "".join(part["message"]["content"] for part in parts)
    title = {"model": "fake:latest", "messages": [{"role": "user", "content": TASK.format('SAY[[[{"title": "Romeo"}]]]')}], "stream": False, "options": {"num_predict": 1000}}
    assert json.loads(asked("POST", "/api/chat", title, url=SCRIPTED)["message"]["content"]) == {"title": "Romeo"}


@check
def documents_are_embedded():
    texts = ["But soft!", "We are the people."]
    named = asked("POST", "/api/embed", {"input": texts, "model": OLLAMA, "truncate": True})["embeddings"]
    data = asked("POST", "/v1/embeddings", {"input": texts, "model": MODEL})["data"]
    assert len(named) == len(data) == 2 and len(named[0]) == len(data[0]["embedding"])


@check
def leaving_a_stream_cancels():
    body = {"messages": ASKED, "stream": True, "max_tokens": 400}
    for path, more in [("/v1/chat/completions", {"model": MODEL}), ("/api/chat", {"model": OLLAMA, "options": {"num_predict": 400}})]:
        with Cancelled():
            asyncio.run(lines(path, {**body, **more}, most=2))


@check
def errors_have_an_error():
    for path, model in [("/v1/chat/completions", MODEL), ("/api/chat", OLLAMA)]:
        body = {"model": model, "messages": ASKED, "stream": True}
        long = {**body, "messages": [{"role": "user", "content": TOO_LONG}]}
        for wanted, more in [(404, {"body": {**body, "model": "other"}}), (401, {"body": body, "key": "wrong"}), (400, {"body": long})]:
            status, _, found = asyncio.run(ask("POST", path, **more))
            error = found["error"]
            assert status == wanted and (error if path.startswith("/api") else error["message"]), (path, status, found)


@check
def pages_of_an_origin_connect_directly():
    """A direct connection: the browser itself sends the requests."""
    async def preflight(path, method, origin):
        more = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": "authorization,content-type"}
        async with aiohttp.ClientSession() as session, session.options(URL + path, headers=more) as answer:
            return answer.status, answer.headers

    for path, method in [("/v1/models", "GET"), ("/v1/chat/completions", "POST")]:
        status, found = asyncio.run(preflight(path, method, ORIGIN))
        allowed = found["Access-Control-Allow-Headers"].lower()
        assert status in (200, 204) and found["Access-Control-Allow-Origin"] == ORIGIN and "authorization" in allowed, (status, found)
        assert "Access-Control-Allow-Origin" not in asyncio.run(preflight(path, method, "http://other.example"))[1]
    status, found, _ = asyncio.run(ask("GET", "/v1/models", Origin=ORIGIN))
    assert status == 200 and found["Access-Control-Allow-Origin"] == ORIGIN, (status, found)
    status, found, _ = asyncio.run(ask("POST", "/v1/chat/completions", {"model": "other", "messages": ASKED}, Origin=ORIGIN))
    assert status == 404 and found["Access-Control-Allow-Origin"] == ORIGIN, "a page must be able to read errors"


run("Open WebUI's requests")
