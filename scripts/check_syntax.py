#!/usr/bin/env python3
"""Parses every Python file below the given folders; writes nothing."""

import ast
import sys
from pathlib import Path

faults = 0
files = sorted(path for root in sys.argv[1:] for path in Path(root).rglob("*.py"))
for path in files:
    try:
        ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        print(f"{path}:{error.lineno}: {error.msg}", file=sys.stderr)
        faults += 1
print(f"{len(files)} Python files parsed, {faults} with faults")
sys.exit(bool(faults))
