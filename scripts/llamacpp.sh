#!/usr/bin/env bash
# Starts one real llama.cpp server on loopback, in the foreground: scripts/llamacpp.sh PORT [--alias NAME --threads N
# --parallel SLOTS --ctx-per-slot TOKENS ...]; all options: scripts/llamacpp_server.py --help.
set -euo pipefail
cd "$(dirname "$0")/.."
port=${1:?usage: scripts/llamacpp.sh PORT [options of scripts/llamacpp_server.py]}
shift
[ -x .cache/llama/bin/python ] || scripts/setup_venvs.sh >&2
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # busy waiting starves the neighbours where threads outnumber cores
exec .cache/llama/bin/python scripts/llamacpp_server.py --port "$port" "$@"
