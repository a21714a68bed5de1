#!/usr/bin/env bash
# Says at once which tools are missing and how to get each; exits 1 if any is.
set -euo pipefail
missing=0

lacks() { # NAME HOW...
    missing=1
    printf 'missing: %s\n' "$1" >&2
    shift
    printf '    %s\n' "$@" >&2
}

# at_least WANTED FOUND: dotted versions
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

wanted_rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
    lacks "Rust $wanted_rust or later" "install rustup (https://rustup.rs), then: rustup toolchain install stable"
else
    found=$(rustc --version | awk '{print $2}')
    at_least "$wanted_rust" "$found" ||
        lacks "Rust $wanted_rust or later (found $found)" "rustup update stable && rustup default stable"
    cargo fmt --version >/dev/null 2>&1 || lacks "rustfmt" "rustup component add rustfmt"
    cargo clippy --version >/dev/null 2>&1 || lacks "clippy" "rustup component add clippy"
fi

command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null ||
    lacks "a C++ compiler (SQLite and the vector index are compiled)" \
        "Debian, Ubuntu: apt-get install g++    Fedora: dnf install gcc-c++    macOS: xcode-select --install"

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    lacks "Python 3.11 or later" "Debian, Ubuntu: apt-get install python3 python3-venv    Fedora: dnf install python3"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    lacks "Python 3.11 or later (found $("$python" -V 2>&1))" "install a newer one and set PYTHON=/path/to/python3"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    lacks "Python's venv module" "Debian, Ubuntu: apt-get install python3-venv"
fi

command -v curl >/dev/null || lacks "curl" "Debian, Ubuntu: apt-get install curl    Fedora: dnf install curl"

[ "$missing" = 0 ] || { echo "install what is missing and run this again" >&2; exit 1; }
