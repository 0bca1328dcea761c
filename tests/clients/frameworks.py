#!/usr/bin/env python3
"""instructor and llama-index, in the environment of .ci/clients: served.py python frameworks.py"""
import asyncio
from typing import Literal

import instructor
import openai
from instructor.core import InstructorRetryException
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict, Field

from checks import CALL, FAKE, KEY, MODEL, SCRIPTED, TOO_LONG, URL, Cancelled, check, refused, run


class Line(BaseModel):
    """A line of a play."""

    # The demo model would invent endless fields.
    model_config = ConfigDict(extra="forbid")
    speaker: Literal["ROMEO", "JULIET"]
    scene: int = Field(ge=1, le=9)


ASKED = [{"role": "user", "content": "Speak, Romeo."}]


def client(key=KEY):
    return openai.OpenAI(base_url=URL + "/v1", api_key=key, max_retries=0, timeout=60)


def instruct(mode, **more):
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 400, "temperature": 0, "max_retries": 0, **more}
    return instructor.from_openai(client(), mode=mode).chat.completions.create(response_model=Line, **asked)


@check
def instructor_gets_an_object_in_each_mode():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        line = instruct(mode)
        assert isinstance(line, Line), (mode, line)


@check
def instructor_streams_a_growing_object():
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 400, "temperature": 0}
    patched = instructor.from_openai(client(), mode=instructor.Mode.JSON_SCHEMA)
    parts = list(patched.chat.completions.create_partial(response_model=Line, **asked))
    assert len(parts) > 1 and parts[-1].speaker in ("ROMEO", "JULIET") and 1 <= parts[-1].scene <= 9, parts


@check
def instructor_reports_errors():
    for part, more in [("model_not_found", {"model": "other.gguf"}), ("context", {"messages": [{"role": "user", "content": TOO_LONG}]})]:
        refused((openai.APIStatusError, InstructorRetryException), part, lambda: instruct(instructor.Mode.JSON_SCHEMA, **more))


def like(url=URL, model=MODEL, key=KEY, **more):
    settings = {"max_tokens": 16, "temperature": 0, "max_retries": 0, "is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(model=model, api_base=url + "/v1", api_key=key, **{**settings, **more})


@check
def llama_index_streams_what_it_answers_whole():
    chat, text = like(), like(is_chat_model=False)
    whole = chat.chat([ChatMessage(role="user", content="Speak, Romeo.")])
    streamed = list(chat.stream_chat([ChatMessage(role="user", content="Speak, Romeo.")]))
    assert whole.message.content and streamed[-1].message.content == whole.message.content, (whole, streamed[-1])
    assert whole.raw.usage.completion_tokens == 16, whole.raw
    completed = text.complete("ROMEO:").text
    assert completed and list(text.stream_complete("ROMEO:"))[-1].text == completed


@check
def llama_index_follows_a_schema():
    # It asks for a tool; with `should_use_structured_outputs` it sends the schema as response_format.
    for more in ({}, {"should_use_structured_outputs": True}):
        line = like(max_tokens=400, **more).as_structured_llm(Line).complete("Speak, Romeo.").raw
        assert isinstance(line, Line), (more, line)


@check
def llama_index_agent_calls_a_tool_and_answers():
    def get_weather(town: str, days: int) -> str:
        """The weather in a town."""
        return f"Rain in {town} for {days} days."

    async def ask():
        agent = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=like(SCRIPTED, FAKE, max_tokens=400))
        return await agent.run(CALL)

    answer = asyncio.run(ask())
    assert [call.tool_output.content for call in answer.tool_calls] == ["Rain in Oslo for 2 days."], answer
    assert answer.response.content == "The tool said: Rain in Oslo for 2 days.", answer


@check
def llama_index_embeds():
    embedding = OpenAILikeEmbedding(model_name=MODEL, api_base=URL + "/v1", api_key=KEY, max_retries=0)
    one, both = embedding.get_text_embedding("But soft!"), embedding.get_text_embedding_batch(["But soft!", "We are the people."])
    assert len(both) == 2 and len(one) == len(both[1]) and all(abs(a - b) < 1e-4 for a, b in zip(one, both[0])), both


@check
def llama_index_reports_errors():
    missing = refused(openai.NotFoundError, "other.gguf", lambda: like(model="other.gguf").complete("x"))
    assert missing.code == "model_not_found", missing.body
    assert refused(openai.BadRequestError, "context", lambda: like().complete(TOO_LONG)).code == "context_length_exceeded"
    assert refused(openai.AuthenticationError, "key", lambda: like(key="wrong").complete("x")).code == "invalid_api_key"


run("instructor and llama-index")
