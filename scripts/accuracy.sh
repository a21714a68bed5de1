#!/usr/bin/env bash
# How well the router predicts, on three real llama.cpp servers: calibrates them, then sends real prompts at 30, 60 and
# 90 % of their capacity, then once more to a router that knows nothing. About a quarter of an hour on two cores.
#
#   scripts/accuracy.sh [--requests N] [--loads 0.3,0.6,0.9] [--skip-defaults] [--out DIR] ...   (--help: all of them)
#
# Nothing else should run on the machine. Needs `make setup`. docs/CALIBRATION.md says what the figures mean.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .cache/llama/bin/python ] || scripts/setup_venvs.sh >&2
exec "${PYTHON:-python3}" -B scripts/accuracy.py "$@"
