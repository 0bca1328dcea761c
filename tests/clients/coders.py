#!/usr/bin/env python3
"""Coding programs edit a file through the API, each in an empty home folder: aider (chats), opencode (the AI SDK), codex
(responses) and claude (Anthropic's messages). Those that are not installed are SKIPPED; see more.sh.

served.py python coders.py, with their folders in BRAMBLE_CODERS (as in PATH)
"""
import json
import os
import shutil
import subprocess
import tempfile

from checks import FAKE, KEY, MODEL, SCRIPTED, URL, check, run

PATH = os.environ.get("BRAMBLE_CODERS", "") + os.pathsep + os.environ["PATH"]
# They start slowly on a busy machine.
PATIENCE = 180


def coder(name, arguments, files=None, model=FAKE, url=SCRIPTED, **more):
    """Runs a program in a new folder with these files; returns its output and the files afterwards, or None."""
    program = shutil.which(name, path=PATH)
    if not program:
        print(f"SKIPPED {name}: not installed", flush=True)
        return None
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as home:
        work = os.path.join(home, "work")
        os.makedirs(work)
        for path, text in (files or {}).items():
            os.makedirs(os.path.dirname(os.path.join(home, path)), exist_ok=True)
            with open(os.path.join(home, path), "w") as file:
                file.write(text)
        filled = [text.replace("FOLDER", work).replace("URL", url).replace("MODEL", model) for text in arguments]
        environment = {"PATH": PATH, "HOME": home, "TERM": "dumb", **{key: value.replace("URL", url) for key, value in more.items()}}
        ran = subprocess.run([program, *filled], cwd=work, env=environment, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
        after = {}
        for path in os.listdir(work):
            if os.path.isfile(os.path.join(work, path)):
                with open(os.path.join(work, path)) as file:
                    after[path] = file.read()
        return ran.stdout + ran.stderr, after


AIDER = [
    "--model", "openai/MODEL", "--openai-api-base", "URL/v1", "--openai-api-key", KEY, "--no-git", "--yes-always", "--no-check-update",
    "--no-show-model-warnings", "--no-analytics", "--no-show-release-notes", "--no-detect-urls", "--no-pretty", "--map-tokens", "0", "--edit-format", "diff",
]
EDIT = "SAY[[[hello.py\n```python\n<<<<<<< SEARCH\nprint(1)\n=======\nprint(2)\n>>>>>>> REPLACE\n```]]]"


@check
def aider_edits_a_file():
    for more in (["--stream"], ["--no-stream"]):
        found = coder("aider", [*AIDER, *more, "--message", EDIT, "hello.py"], {"work/hello.py": "print(1)\n"})
        assert not found or found[1]["hello.py"] == "print(2)\n", found


@check
def aider_shows_errors():
    for wanted, more in [("other.gguf", {"model": "other.gguf"}), ("context", {"model": MODEL})]:
        # The prompts of aider alone are longer than the context of the demo model.
        found = coder("aider", [*AIDER, "--message", "Hello.", "hello.py"], {"work/hello.py": "print(1)\n"}, url=URL, **more)
        assert not found or wanted in found[0], (wanted, found)


@check
def opencode_writes_a_file():
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Bramble", "options": {"baseURL": SCRIPTED + "/v1", "apiKey": KEY}, "models": {FAKE: {"name": FAKE}}}
    config = {"provider": {"bramble": provider}, "model": f"bramble/{FAKE}", "small_model": f"bramble/{FAKE}", "permission": "allow", "autoupdate": False, "share": "disabled"}
    # It puts an argument with spaces into quotes.
    call = 'CALL[[[write{"filePath":"FOLDER/note.txt","content":"two"}]]]'
    found = coder("opencode", ["run", "--model", f"bramble/{FAKE}", call], {"work/opencode.json": json.dumps(config)})
    assert not found or (found[1].get("note.txt") == "two" and "The tool said:" in found[0]), found


@check
def codex_runs_a_command():
    # Without these settings it sends tools that are no functions.
    functions = 'web_search = "disabled"\nfeatures.multi_agent = false\n'
    config = f'model = "{FAKE}"\nmodel_provider = "bramble"\n{functions}[model_providers.bramble]\nname = "Bramble"\nbase_url = "{SCRIPTED}/v1"\nenv_key = "BRAMBLE_TOKEN"\nwire_api = "responses"\n'
    call = 'CALL[[[exec_command {"cmd": "echo two > note.txt"}]]]'
    asked = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", call]
    found = coder("codex", asked, {".codex/config.toml": config}, BRAMBLE_TOKEN=KEY)
    assert not found or (found[1].get("note.txt") == "two\n" and "The tool said:" in found[0]), found


@check
def claude_writes_a_file():
    call = 'CALL[[[Write {"file_path": "FOLDER/note.txt", "content": "two"}]]]'
    more = {"ANTHROPIC_BASE_URL": "URL", "ANTHROPIC_AUTH_TOKEN": KEY, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    found = coder("claude", ["-p", call, "--model", "MODEL", "--allowedTools", "Write"], **more)
    assert not found or (found[1].get("note.txt") == "two" and "The tool said:" in found[0]), found


run("coding programs")
