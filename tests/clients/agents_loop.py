#!/usr/bin/env python3
"""pydantic-ai and openai-agents, which run loops of tool calls, with openai 3: served.py python agents_loop.py"""
import asyncio
from typing import Annotated, Literal

import agents
import openai
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from checks import CALL, FAKE, KEY, MODEL, SCRIPTED, TOO_LONG, URL, Cancelled, check, refused, run

# One loop for all checks: the clients keep connections, which belong to a loop.
LOOP = asyncio.Runner()
SAID = "The tool said: Rain in Oslo for 2 days."
SHORT = {"max_tokens": 16, "temperature": 0}


class Line(BaseModel):
    """A line of a play."""

    # The demo model would invent endless fields.
    model_config = ConfigDict(extra="forbid")
    speaker: Literal["ROMEO", "JULIET"]
    scene: int = Field(ge=1, le=9)


def get_weather(town: Annotated[str, Field(max_length=8)], days: Annotated[int, Field(ge=1, le=9)]) -> str:
    """The weather in a town."""
    return f"Rain in {town} for {days} days."


def openai_of(url=URL, key=KEY):
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=60)


def models(url=URL, name=MODEL, key=KEY):
    """The same model by each API that pydantic-ai speaks."""
    import anthropic

    provider = OpenAIProvider(openai_client=openai_of(url, key))
    of_anthropic = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=60)
    return [
        OpenAIChatModel(name, provider=provider),
        OpenAIResponsesModel(name, provider=provider),
        AnthropicModel(name, provider=AnthropicProvider(anthropic_client=of_anthropic)),
    ]


@check
def pydantic_ai_streams_what_it_answers_whole():
    async def ask(model):
        agent = Agent(model, model_settings=SHORT)
        whole = await agent.run("Speak, Romeo.")
        async with agent.run_stream("Speak, Romeo.") as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        assert whole.output and "".join(pieces) == whole.output and len(pieces) > 1, (model, pieces, whole)
        assert whole.usage.output_tokens == 16, (model, whole.usage)

    for model in models():
        LOOP.run(ask(model))


@check
def pydantic_ai_gets_an_object_as_a_tool_and_as_a_format():
    async def ask(model, kind):
        line = (await Agent(model, output_type=kind, model_settings={"max_tokens": 400, "temperature": 0}).run("Speak, Romeo.")).output
        assert isinstance(line, Line), (model, line)

    for model in models()[:2]:
        for kind in (Line, NativeOutput(Line)):
            LOOP.run(ask(model, kind))
    LOOP.run(ask(models()[2], Line))


@check
def pydantic_ai_loops_over_a_tool_and_shows_thoughts():
    async def ask(model):
        agent = Agent(model, tools=[Tool(get_weather)])
        result = await agent.run(CALL)
        # The thoughts of /v1/responses have no summary, only a text.
        thoughts = [part.content or "".join(part.provider_details["raw_content"]) for message in result.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
        assert result.output == SAID and [thought.strip() for thought in thoughts] == ["Hm.", "Hm."], (model, result, thoughts)
        async with agent.run_stream(CALL) as stream:
            assert await stream.get_output() == SAID, model

    for model in models(SCRIPTED, FAKE):
        LOOP.run(ask(model))


@check
def pydantic_ai_cancels_a_stream():
    async def ask(model):
        async with Agent(model, model_settings={"max_tokens": 400}).run_stream("Speak, Romeo.") as stream:
            async for _ in stream.stream_text(delta=True, debounce_by=None):
                await stream.cancel()
                break

    for model in models():
        with Cancelled():
            LOOP.run(ask(model))


@check
def pydantic_ai_reports_errors():
    for model in models(name="other.gguf"):
        assert refused(ModelHTTPError, "other.gguf", lambda: LOOP.run(Agent(model).run("x"))).status_code == 404, model
    for model in models(key="wrong"):
        assert refused(ModelHTTPError, "key", lambda: LOOP.run(Agent(model).run("x"))).status_code == 401, model
    for model in models():
        assert refused(ModelHTTPError, "context", lambda: LOOP.run(Agent(model).run(TOO_LONG))).status_code == 400, model


def of_agents(name=MODEL, url=URL, key=KEY):
    """The same model by both APIs that openai-agents speaks."""
    return [kind(name, openai_of(url, key)) for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel)]


def settings(**more):
    return agents.ModelSettings(**{"max_tokens": 16, "temperature": 0, **more})


@check
def openai_agents_stream_what_they_answer_whole():
    """By the scripted model: an answer of /v1/responses that `max_tokens` cuts off is an error for this client."""
    async def ask(model):
        agent = agents.Agent("Actor", instructions="You write plays.", model=model)
        whole = await agents.Runner.run(agent, "SAY[[[But soft! What light?]]]")
        stream = agents.Runner.run_streamed(agent, "SAY[[[But soft! What light?]]]")
        pieces = [event.data.delta async for event in stream.stream_events() if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
        assert whole.final_output == stream.final_output == "".join(pieces) == "But soft! What light?" and len(pieces) > 1, (model, pieces, whole)

    for model in of_agents(FAKE, SCRIPTED):
        LOOP.run(ask(model))


@check
def openai_agents_get_an_object():
    async def ask(model):
        agent = agents.Agent("Actor", model=model, output_type=Line, model_settings=settings(max_tokens=400))
        assert isinstance((await agents.Runner.run(agent, "Speak, Romeo.")).final_output, Line), model

    for model in of_agents():
        LOOP.run(ask(model))


@check
def openai_agents_loop_over_a_tool():
    async def ask(model):
        agent = agents.Agent("Actor", model=model, tools=[agents.function_tool(get_weather)])
        result = await agents.Runner.run(agent, CALL)
        kinds = [item.type for item in result.new_items if item.type != "reasoning_item"]
        assert result.final_output == SAID and kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], (model, result.new_items)
        assert any(item.type == "reasoning_item" for item in result.new_items), (model, result.new_items)
        stream = agents.Runner.run_streamed(agent, CALL)
        async for _ in stream.stream_events():
            pass
        assert stream.final_output == SAID, (model, stream)

    for model in of_agents(FAKE, SCRIPTED):
        LOOP.run(ask(model))


@check
def openai_agents_must_call_a_tool():
    async def ask(model):
        more = settings(max_tokens=400, tool_choice="required")
        agent = agents.Agent("Actor", model=model, tools=[agents.function_tool(get_weather)], model_settings=more, tool_use_behavior="stop_on_first_tool")
        assert (await agents.Runner.run(agent, "The weather?")).final_output.startswith("Rain in "), model

    for model in of_agents():
        LOOP.run(ask(model))


@check
def openai_agents_cancel_a_run():
    async def ask(model):
        stream = agents.Runner.run_streamed(agents.Agent("Actor", model=model, model_settings=settings(max_tokens=400)), "Speak, Romeo.")
        async for event in stream.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                stream.cancel()

    for model in of_agents():
        with Cancelled():
            LOOP.run(ask(model))


@check
def openai_agents_report_errors():
    async def ask(model, text):
        return await agents.Runner.run(agents.Agent("Actor", model=model), text)

    for model in of_agents("other.gguf"):
        assert refused(openai.NotFoundError, "other.gguf", lambda: LOOP.run(ask(model, "x"))).code == "model_not_found"
    for model in of_agents(key="wrong"):
        assert refused(openai.AuthenticationError, "key", lambda: LOOP.run(ask(model, "x"))).code == "invalid_api_key"
    for model in of_agents():
        assert refused(openai.BadRequestError, "context", lambda: LOOP.run(ask(model, TOO_LONG))).code == "context_length_exceeded"


# Its traces go to OpenAI otherwise.
agents.set_tracing_disabled(True)
run("pydantic-ai and openai-agents")
