#!/usr/bin/env bash
# Makes the Debian package: target/debian/cema-router_VERSION_ARCH.deb.
#
#   scripts/package.sh [--binary FILE]
#
# Builds the release binary (some minutes) and packs it with ONNX Runtime, the embedding model, the systemd unit and
# a first configuration (packaging/), dashboards and documentation. --binary takes one that was built before.
# `scripts/package_test.sh` installs the package in a clean root and starts it there.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { # MESSAGE HOW...
    printf 'package: %s\n' "$1" >&2
    shift
    [ $# = 0 ] || printf '    %s\n' "$@" >&2
    exit 1
}

binary=
while [ $# -gt 0 ]; do
    case $1 in
    --binary)
        binary=${2:?usage: scripts/package.sh [--binary FILE]}
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" && exit ;;
    *) fail "unknown option $1; see --help" ;;
    esac
    shift
done

cargo deb --version >/dev/null 2>&1 || fail "cargo-deb is missing" "cargo install --locked cargo-deb"
for tool in dpkg-deb dpkg-shlibdeps; do
    command -v "$tool" >/dev/null || fail "$tool is missing" "Debian, Ubuntu: apt-get install dpkg-dev"
done

if [ -z "$binary" ]; then
    scripts/check_tools.sh
    cargo build --release --locked --bin cema-router
    binary=${CARGO_TARGET_DIR:-target}/release/cema-router
fi
[ -x "$binary" ] || fail "$binary is no program"
scripts/setup_embedder.sh
embedder=.cache/cema

stage=target/package
rm -rf "$stage"
mkdir -p "$stage/model" "$stage/licences"
# Line tables are most of the file; function names in a panic's trace stay.
strip --strip-debug -o "$stage/cema-router" "$binary"
cp "$embedder/lib/libonnxruntime.so" "$stage"
cp "$embedder/model/model.onnx" "$embedder/model/tokenizer.json" "$stage/model"
cp "$embedder"/lib/onnxruntime-* "$stage/licences"
echo "all-MiniLM-L6-v2 of sentence-transformers, converted to ONNX: Apache License 2.0, as in ../copyright." >"$stage/licences/model.txt"
"${PYTHON:-python3}" -B scripts/third_party_licences.py >"$stage/licences/rust-crates.txt"
"$stage/cema-router" man "$stage/man"
mkdir "$stage/completions"
for shell in bash zsh fish; do "$stage/cema-router" completions $shell >"$stage/completions/$shell"; done
gzip -9n "$stage"/licences/*.txt "$stage"/man/*.1

made=$(cargo deb --quiet --no-build --no-strip --locked --output target/debian/)
printf 'package: %s, %s bytes\n' "$made" "$(stat -c %s "$made")"
sha256sum "$made"
dpkg-deb --field "$made" Package Version Architecture Installed-Size Depends
echo "package: install it with: sudo apt install ./${made#"$PWD"/}"
