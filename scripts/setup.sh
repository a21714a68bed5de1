#!/usr/bin/env bash
# Everything `make test` and `make demo` need beyond the tools of scripts/check_tools.sh, into .cache.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/check_tools.sh
scripts/setup_embedder.sh
scripts/setup_venvs.sh
