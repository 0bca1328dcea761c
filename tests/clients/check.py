#!/usr/bin/env python3
"""The APIs with their common clients: openai, litellm, langchain-openai, anthropic and ollama from PyPI, against two
daemons. Run by .ci/clients in an environment that has them.

cargo build --release --locked --workspace && tests/clients/check.py
"""
import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import bramble

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import anthropic
import litellm
import ollama
import openai
from langchain_openai import ChatOpenAI, OpenAI as LangChainCompletion

MODEL = "bard-q8_0.gguf"
MODELS = os.path.join(bramble.ROOT, "packaging", "demo")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a town",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["town", "days"],
            "additionalProperties": False,
        },
    },
}
ASKED = [{"role": "system", "content": "You write plays."}, {"role": "user", "content": "Speak, Romeo."}]


CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class Served:
    """The API of two daemons, and clients for it."""

    def __init__(self, url, other):
        self.url, self.other = url, other
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
        self.ollama = ollama.Client(host=url, timeout=60)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def metric(self, name):
        """The sum of a metric's samples."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name) and line[len(name)] in " {"]
        return sum(float(line.split()[-1]) for line in lines)


def chat(served, **more):
    return served.openai.chat.completions.create(model=MODEL, messages=ASKED, **{"max_tokens": 16, "temperature": 0, **more})


@check
def openai_lists_the_model(served):
    models = served.openai.models.list().data
    assert [model.id for model in models] == [MODEL], models
    assert served.openai.models.retrieve(MODEL).id == MODEL


@check
def openai_completes_a_text(served):
    answer = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=12, temperature=0)
    assert answer.choices[0].text and answer.choices[0].finish_reason == "length", answer
    assert answer.usage.completion_tokens == 12 and answer.usage.total_tokens == answer.usage.prompt_tokens + 12, answer.usage
    timings = answer.model_extra["timings"]
    assert timings["predicted_n"] == 12 and timings["predicted_ms"] > 0, timings


@check
def openai_chats_and_a_seed_repeats_an_answer(served):
    one, other = (chat(served, temperature=1.0, seed=7).choices[0].message for _ in range(2))
    assert one.role == "assistant" and one.content and one.content == other.content, (one, other)
    third = chat(served, temperature=1.0, seed=8).choices[0].message
    assert third.content != one.content, third


@check
def openai_streams_what_it_answers_whole(served):
    whole = chat(served).choices[0].message.content
    chunks = list(chat(served, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole, (text, whole)
    assert chunks[-1].usage.completion_tokens == 16 and not chunks[-1].choices, chunks[-1]
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["length"], reasons
    assert all(chunk.usage is None for chunk in chat(served, stream=True)), "usage must only be sent on request"


@check
def openai_stops_at_a_string(served):
    whole = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=48, temperature=0).choices[0].text
    word = whole.split()[3]
    answer = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=48, temperature=0, stop=[word])
    assert answer.choices[0].text == whole[: whole.index(word)] and answer.choices[0].finish_reason == "stop", answer


@check
def openai_gets_logprobs(served):
    content = chat(served, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 16 and all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content), content
    assert all(token.logprob == token.top_logprobs[0].logprob for token in content), "the chosen tokens must be the most probable ones"
    answer = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=4, temperature=0, logprobs=2)
    assert len(answer.choices[0].logprobs.token_logprobs) == 4, answer


@check
def openai_biases_a_token_away(served):
    plain = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=1, temperature=0, logprobs=1)
    first = plain.choices[0].text
    ids = json.loads(bramble_tokenize(first))["token_ids"]
    biased = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=1, temperature=0, logit_bias={str(id): -100 for id in ids})
    assert biased.choices[0].text != first, (first, ids, biased)


@check
def openai_gets_several_choices(served):
    answer = chat(served, n=3, temperature=1.0, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1 and answer.usage.completion_tokens == 48, answer


@check
def openai_gets_json(served):
    # The demo model writes endless strings of verse; with some seeds the object is complete in time.
    ended = 0
    for seed in range(24):
        answer = chat(served, max_tokens=200, temperature=1.0, seed=seed, response_format={"type": "json_object"})
        assert answer.choices[0].message.content.startswith("{"), answer
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(answer.choices[0].message.content), dict), answer
            ended += 1
    assert ended > 0, f"no object ended within 200 tokens: {answer}"


SCHEMA = {
    "type": "object",
    "properties": {"speaker": {"enum": ["ROMEO", "JULIET"]}, "scene": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["speaker", "scene"],
    "additionalProperties": False,
}


@check
def openai_gets_what_a_schema_says(served):
    form = {"type": "json_schema", "json_schema": {"name": "line", "schema": SCHEMA, "strict": True}}
    found = json.loads(chat(served, max_tokens=400, response_format=form).choices[0].message.content)
    assert set(found) == {"speaker", "scene"} and found["speaker"] in ("ROMEO", "JULIET") and 1 <= found["scene"] <= 9, found


@check
def openai_calls_a_tool_that_it_must_call(served):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = chat(served, max_tokens=400, tools=[WEATHER], tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls", answer
        call = answer.message.tool_calls[0]
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "get_weather" and call.id and set(arguments) == {"town", "days"}, call


@check
def openai_streams_a_tool_call(served):
    name, arguments, reasons = "", "", []
    for chunk in chat(served, max_tokens=400, tools=[WEATHER], tool_choice="required", stream=True):
        for choice in chunk.choices:
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                assert call.index == 0, call
                name, arguments = name + (call.function.name or ""), arguments + (call.function.arguments or "")
    assert name == "get_weather" and set(json.loads(arguments)) == {"town", "days"} and reasons == ["tool_calls"], (name, arguments, reasons)


@check
def openai_says_what_is_wrong(served):
    def refused(error, part, **more):
        try:
            chat(served, **more)
        except error as found:
            assert part in str(found), found
        else:
            raise AssertionError(f"{more} was not refused")

    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.BadRequestError, "form", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}})
    refused(openai.BadRequestError, "", stop=["x"] * 100)
    try:
        served.openai.chat.completions.create(model="other.gguf", messages=ASKED)
    except openai.NotFoundError as found:
        assert found.code == "model_not_found" and "other.gguf" in str(found), found
    else:
        raise AssertionError("a request for another model was served")
    try:
        served.openai.completions.create(model=MODEL, prompt="a b c " * 4000, max_tokens=4)
    except openai.BadRequestError as found:
        assert "context" in str(found), found
    else:
        raise AssertionError("a prompt beyond the context was accepted")


@check
def openai_cancels_by_closing_the_stream(served):
    stream = chat(served, max_tokens=400, stream=True)
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 20
    while served.metric("bramble_requests_running") > 0:
        assert time.monotonic() < deadline, "the request continues without its client"
        time.sleep(0.05)


@check
def openai_names_its_request(served):
    raw = served.openai.completions.with_raw_response.create(
        model=MODEL, prompt="ROMEO:", max_tokens=4, temperature=1.0, extra_headers={"X-Request-Id": "a-name-of-mine"}
    )
    again = served.openai.completions.with_raw_response.create(
        model=MODEL, prompt="ROMEO:", max_tokens=4, temperature=1.0, extra_headers={"X-Request-Id": "a-name-of-mine"}
    )
    assert raw.headers["x-request-id"] == "a-name-of-mine"
    assert raw.parse().choices[0].text == again.parse().choices[0].text, "a retry must give the same text"


@check
def openai_is_served_by_any_node(served):
    other = openai.OpenAI(base_url=served.other + "/v1", api_key="none", max_retries=0, timeout=60)
    mine = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=12, temperature=0).choices[0].text
    assert other.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=12, temperature=0).choices[0].text == mine
    streamed = other.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=12, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == mine


@check
def openai_works_asynchronously_with_many_at_a_time(served):
    async def all_of_them():
        client = openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=120)
        ask = lambda: client.completions.create(model=MODEL, prompt="JULIET:", max_tokens=12, temperature=0)
        return [answer.choices[0].text for answer in await asyncio.gather(*(ask() for _ in range(8)))]

    texts = asyncio.run(all_of_them())
    assert len(set(texts)) == 1, texts


@check
def litellm_chats_and_streams(served):
    more = {"model": f"openai/{MODEL}", "api_base": served.url + "/v1", "api_key": "none", "messages": ASKED, "max_tokens": 12, "temperature": 0}
    whole = litellm.completion(**more, stop=["never said"])
    assert whole.choices[0].message.content and whole.usage.completion_tokens == 12, whole
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**more, stream=True))
    assert streamed == whole.choices[0].message.content, (streamed, whole)
    try:
        litellm.completion(**{**more, "temperature": -1})
    except litellm.BadRequestError as found:
        assert "temperature" in str(found), found
    else:
        raise AssertionError("a negative temperature was accepted")


@check
def langchain_invokes_streams_and_structures(served):
    model = ChatOpenAI(model=MODEL, base_url=served.url + "/v1", api_key="none", max_retries=0, temperature=0, max_tokens=24)
    whole = model.invoke("Speak, Romeo.")
    assert whole.content and whole.usage_metadata["output_tokens"] == 24, whole
    assert "".join(chunk.content for chunk in model.stream("Speak, Romeo.")) == whole.content
    tall = ChatOpenAI(model=MODEL, base_url=served.url + "/v1", api_key="none", max_retries=0, temperature=0, max_tokens=400)
    line = tall.with_structured_output(SCHEMA | {"title": "Line"}, method="json_schema").invoke("Speak, Romeo.")
    assert line["speaker"] in ("ROMEO", "JULIET"), line
    called = tall.bind_tools([WEATHER], tool_choice="get_weather").invoke("The weather?")
    assert called.tool_calls[0]["name"] == "get_weather" and set(called.tool_calls[0]["args"]) == {"town", "days"}, called
    text = LangChainCompletion(model=MODEL, base_url=served.url + "/v1", api_key="none", max_retries=0, temperature=0, max_tokens=8).invoke("ROMEO:")
    assert text, "a completion has text"


def message(temperature=0, **more):
    """Arguments of a request; the client itself no longer knows a temperature."""
    asked = [{"role": "user", "content": "Speak, Romeo."}]
    sampling = {"temperature": temperature}
    return {"model": MODEL, "messages": asked, "system": "You write plays.", "max_tokens": 16, "extra_body": sampling, **more}


def rewritten(schema):
    """The tool of these checks in Anthropic's form."""
    function = schema["function"]
    return {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}


@check
def anthropic_streams_what_it_answers_whole(served):
    whole = served.anthropic.messages.create(**message())
    assert whole.content[0].text and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 16, whole
    with served.anthropic.messages.stream(**message()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.usage.output_tokens == 16, (text, final)
    assert final.stop_reason == "max_tokens" and final.usage.input_tokens + final.usage.cache_read_input_tokens > 0, final


@check
def anthropic_calls_a_tool_and_takes_its_result(served):
    more = {"tools": [rewritten(WEATHER)], "tool_choice": {"type": "any"}, "max_tokens": 400}
    answer = served.anthropic.messages.create(**message(**more))
    call = answer.content[-1]
    assert answer.stop_reason == "tool_use" and call.type == "tool_use" and set(call.input) == {"town", "days"}, answer
    with served.anthropic.messages.stream(**message(**more)) as stream:
        assert stream.get_final_message().content[-1].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    turns = [
        {"role": "user", "content": "The weather?"},
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    assert served.anthropic.messages.create(**message(messages=turns)).content[0].text


@check
def anthropic_gets_errors_of_its_own(served):
    for error, more in [
        (anthropic.NotFoundError, {"model": "other.gguf"}),
        (anthropic.BadRequestError, {"temperature": -1}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
    ]:
        try:
            served.anthropic.messages.create(**message(**more))
        except error as found:
            assert found.body["type"] == "error" and found.body["error"]["message"], found.body
        else:
            raise AssertionError(f"{more} was not refused")


@check
def openai_responses_stream_and_continue(served):
    more = {"model": MODEL, "instructions": "You write plays.", "max_output_tokens": 16, "temperature": 0}
    whole = served.openai.responses.create(input="Speak, Romeo.", **more)
    assert whole.output_text and whole.status == "incomplete" and whole.usage.output_tokens == 16, whole
    with served.openai.responses.stream(input="Speak, Romeo.", **more) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text, (text, whole.output_text)
    assert served.openai.responses.retrieve(whole.id).output_text == whole.output_text
    following = served.openai.responses.create(input="More.", previous_response_id=whole.id, **more)
    assert following.usage.input_tokens > whole.usage.input_tokens + 16, following
    served.openai.responses.delete(whole.id)
    try:
        served.openai.responses.retrieve(whole.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("a deleted response is kept")


@check
def openai_responses_call_tools_and_follow_schemas(served):
    more = {"model": MODEL, "max_output_tokens": 400, "temperature": 0, "input": "The weather?"}
    tool = {"type": "function", "strict": False, **WEATHER["function"]}
    answer = served.openai.responses.create(tools=[tool], tool_choice="required", **more)
    call = answer.output[-1]
    assert call.type == "function_call" and set(json.loads(call.arguments)) == {"town", "days"}, answer
    turns = [{"role": "user", "content": "The weather?"}, call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}]
    again = served.openai.responses.create(**{**more, "input": turns, "max_output_tokens": 8})
    assert again.output_text, again
    form = {"format": {"type": "json_schema", "name": "line", "schema": SCHEMA, "strict": True}}
    assert json.loads(served.openai.responses.create(text=form, **more).output_text)["speaker"] in ("ROMEO", "JULIET")


@check
def ollama_chats_generates_and_lists(served):
    names = [model.model for model in served.ollama.list().models]
    assert names == ["bard-q8_0:latest"], names
    assert "completion" in served.ollama.show(names[0]).capabilities and served.ollama.ps().models[0].model == names[0]
    options = {"num_predict": 16, "temperature": 0}
    whole = served.ollama.chat(names[0], messages=ASKED, options=options)
    assert whole.message.content and whole.done_reason == "length" and whole.eval_count == 16, whole
    streamed = "".join(part.message.content for part in served.ollama.chat("bard-q8_0", messages=ASKED, options=options, stream=True))
    assert streamed == whole.message.content, (streamed, whole)
    plain = served.openai.completions.create(model=MODEL, prompt="ROMEO:", max_tokens=16, temperature=0).choices[0].text
    assert served.ollama.generate(names[0], "ROMEO:", raw=True, options=options).response == plain
    line = served.ollama.chat(names[0], messages=ASKED, format=SCHEMA, options={"num_predict": 400, "temperature": 0})
    assert json.loads(line.message.content)["speaker"] in ("ROMEO", "JULIET"), line
    for ask in (lambda: served.ollama.chat("other", messages=ASKED), lambda: served.ollama.pull(names[0])):
        try:
            ask()
        except ollama.ResponseError as found:
            assert found.status_code in (403, 404) and found.error, found
        else:
            raise AssertionError("it was not refused")


@check
def litellm_speaks_the_other_apis(served):
    asked = {"messages": ASKED, "max_tokens": 12, "temperature": 0}
    whole = chat(served, max_tokens=12).choices[0].message.content
    for model, more in [("ollama_chat/bard-q8_0", {}), ("anthropic/bard-q8_0", {"api_key": "none"})]:
        found = litellm.completion(model=model, api_base=served.url, **more, **asked).choices[0].message.content
        streamed = litellm.completion(model=model, api_base=served.url, stream=True, **more, **asked)
        assert found == whole == "".join(chunk.choices[0].delta.content or "" for chunk in streamed), (model, found, whole)


@check
def health_and_metrics_speak_for_the_node(served):
    assert json.loads(served.get("/health"))["status"] in ("ok", "ready"), served.get("/health")
    assert served.metric("bramble_requests_total") > 0
    assert served.metric("bramble_kv_blocks") > served.metric("bramble_kv_blocks_kept") > 0


def bramble_tokenize(text):
    """The tokens that `console tokenize` prints for a text."""
    command = [bramble.program("console"), "tokenize", "--model", os.path.join(MODELS, MODEL), "--text", text, "--json"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    with bramble.Cluster(MODELS) as cluster:
        addresses = bramble.loopback(2)
        urls = [f"http://{address.rsplit(':', 1)[0]}:9980" for address in addresses]
        daemons = [cluster.add(f"pi{index + 1}", address, settings=bramble.QUIET) for index, address in enumerate(addresses)]
        # Assigns the topology: two ranks of one replica.
        bramble.generate(daemons, MODEL, "ROMEO:", 2, "--topology", "tp2")
        served = Served(*urls)
        wanted = sys.argv[1:]
        failed = []
        for one in CHECKS:
            if wanted and one.__name__ not in wanted:
                continue
            began = time.monotonic()
            try:
                one(served)
            except Exception as error:
                failed.append(one.__name__)
                print(f"FAILED {one.__name__}: {type(error).__name__}: {error}", flush=True)
            else:
                print(f"ok     {one.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        if failed:
            for daemon in daemons:
                print(f"--- {daemon.name}\n{daemon.text()[-2000:]}", file=sys.stderr)
            sys.exit(f"{len(failed)} of {len(CHECKS)} checks failed: {', '.join(failed)}")
        print(f"{len(wanted or CHECKS)} checks passed")


if __name__ == "__main__":
    bramble.command(main)
