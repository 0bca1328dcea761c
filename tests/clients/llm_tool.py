#!/usr/bin/env python3
"""The command line `llm` with OpenAI's API (extra-openai-models.yaml) and with llm-ollama: served.py python llm_tool.py"""
import json
import os
import signal
import subprocess
import sys
import tempfile

from checks import CALL, FAKE, KEY, MODEL, SCRIPTED, TOO_LONG, URL, Cancelled, check, run

FOLDER = tempfile.TemporaryDirectory(prefix="llm-")
LLM = os.path.join(os.path.dirname(sys.executable), "llm")
FUNCTION = 'def get_weather(town: str, days: int) -> str:\n    "The weather"\n    return f"Rain in {town} for {days} days."\n'
SHORT = ["-o", "max_tokens", "16", "-o", "temperature", "0"]
OF_OLLAMA = ["-o", "num_predict", "16", "-o", "temperature", "0"]
LINE = json.dumps({"type": "object", "properties": {"speaker": {"enum": ["ROMEO", "JULIET"]}}, "required": ["speaker"], "additionalProperties": False})
# More seconds than any answer here takes.
PATIENCE = 60


def configure():
    lines = []
    for name, url, model, more in [
        ("verse", URL, MODEL, {}),
        ("text", URL, MODEL, {"completion": True}),
        ("answers", URL, MODEL, {"responses": True}),
        ("scripted", SCRIPTED, FAKE, {}),
        ("missing", URL, "other.gguf", {}),
    ]:
        entry = {"model_id": name, "model_name": model, "api_base": url + "/v1", "api_key_name": "bramble", "supports_tools": True, "supports_schema": True, **more}
        lines.append("- " + json.dumps(entry))
    with open(os.path.join(FOLDER.name, "extra-openai-models.yaml"), "w") as file:
        file.write("\n".join(lines) + "\n")


def environment(key=KEY, ollama=URL):
    return {"PATH": os.environ["PATH"], "HOME": FOLDER.name, "LLM_USER_PATH": FOLDER.name, "OLLAMA_HOST": ollama, "OLLAMA_API_KEY": key}


def llm(*arguments, key=KEY, ollama=URL, fails=False):
    given = ["--key", key] if arguments[0] == "prompt" else []
    ran = subprocess.run([LLM, *arguments, *given], env=environment(key, ollama), capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert (ran.returncode != 0) == fails, (arguments, ran.stdout, ran.stderr)
    return ran.stderr if fails else ran.stdout


@check
def it_lists_the_models():
    listed = llm("models", "list")
    assert all(name in listed for name in ("verse", "text", "answers", "ollama/bard-q8_0")), listed


@check
def it_streams_what_it_answers_whole():
    for name, more in [("verse", SHORT), ("text", SHORT), ("answers", SHORT), ("ollama/bard-q8_0", OF_OLLAMA)]:
        asked = ["prompt", "-m", name, "Speak, Romeo.", "-s", "You write plays.", *more] if name != "text" else ["prompt", "-m", name, "ROMEO:", *more]
        streamed, whole = llm(*asked), llm(*asked, "--no-stream")
        assert whole.strip() and streamed == whole, (name, streamed, whole)


@check
def it_calls_a_function_and_answers():
    for name, ollama in [("scripted", URL), ("ollama/fake", SCRIPTED)]:
        for more in ([], ["--no-stream"]):
            said = llm("prompt", "-m", name, CALL, "--functions", FUNCTION, *more, ollama=ollama)
            assert said.strip().endswith("The tool said: Rain in Oslo for 2 days."), (name, said)


@check
def it_follows_a_schema():
    for name, more in [("verse", ["-o", "max_tokens", "100"]), ("ollama/bard-q8_0", ["-o", "num_predict", "100"])]:
        found = json.loads(llm("prompt", "-m", name, "Speak, Romeo.", "--schema", LINE, *more))
        assert found["speaker"] in ("ROMEO", "JULIET"), (name, found)


@check
def it_continues_a_conversation():
    llm("prompt", "-m", "verse", "Speak, Romeo.", *SHORT)
    assert llm("prompt", "-c", "More.", *SHORT).strip()


@check
def interrupting_it_cancels():
    for name, more in [("verse", ["-o", "max_tokens", "400"]), ("ollama/bard-q8_0", ["-o", "num_predict", "400"])]:
        with Cancelled():
            asked = [LLM, "prompt", "-m", name, "Speak, Romeo.", "--key", KEY, *more]
            with subprocess.Popen(asked, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
                assert running.stdout.read(1), "the answer begins"
                running.send_signal(signal.SIGINT)
                running.wait(PATIENCE)


@check
def it_shows_errors():
    assert "other.gguf" in llm("prompt", "-m", "missing", "x", fails=True)
    assert "context" in llm("prompt", "-m", "verse", TOO_LONG, fails=True)
    assert "API key" in llm("prompt", "-m", "verse", "x", key="wrong", fails=True)
    assert "context" in llm("prompt", "-m", "ollama/bard-q8_0", TOO_LONG, fails=True)


configure()
run("llm and llm-ollama")
