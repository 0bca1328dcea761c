#!/usr/bin/env bash
# All client checks: those of .ci/clients, the score of lm-evaluation-harness beside that of llama.cpp, llm and coding programs.
# Builds llama.cpp, so it needs a C++ compiler; takes about half an hour the first time. From the repository:
#
#     tests/clients/more.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
.ci/clients
uv=target/clients/bin/uv

"$uv" pip install -q -p target/clients/bin/python llama-cpp-python==0.3.36
target/clients/bin/python tests/clients/score.py --peer

tests/clients/served.py target/agents/bin/python tests/clients/llm_tool.py

# aider needs a Python of 3.12 or older.
python=$(command -v python3.12 || command -v python3.11 || command -v python3.10 || echo python3)
[ -x target/aider/bin/aider ] || { "$python" -m venv target/aider && "$uv" pip install -q -p target/aider/bin/python aider-chat==0.86.2; }
# Their programs for this machine are put in place after the installation.
[ -x target/coders/node_modules/.bin/codex ] ||
    npm install --prefix target/coders --no-audit --no-fund --allow-scripts=opencode-ai,@anthropic-ai/claude-code \
        opencode-ai@1.18.33 @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.332
BRAMBLE_CODERS="$PWD/target/aider/bin:$PWD/target/coders/node_modules/.bin" tests/clients/served.py target/clients/bin/python tests/clients/coders.py
