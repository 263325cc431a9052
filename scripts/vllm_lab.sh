#!/bin/sh
# Hold a real vLLM on 127.0.0.1:8000 until Ctrl-C (docs/vllm-lab.md); options go to tests/live/vllm/serve.py.
set -eu
cd "$(dirname "$0")/.."
if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; else PYTHON=${PYTHON:-python3}; fi
exec "$PYTHON" -m tests.live.vllm.serve "$@"
