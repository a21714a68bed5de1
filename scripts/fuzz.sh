#!/usr/bin/env bash
# Fuzzes what reads bytes of clients, endpoints and operators. Not part of the gate.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]      each target for SECONDS (60), all targets if none is named
#
# Seeds are in fuzz/corpus; what a run learns goes to .cache/fuzz, so that the next one goes on from there. A
# failing input is written to fuzz/artifacts/TARGET and named in the output; one that is mended becomes a unit test.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/fuzz.sh [SECONDS] [TARGET...]" >&2; exit 2; }
[ $# = 0 ] || shift
toolchain=${CEMA_FUZZ_TOOLCHAIN:-nightly}
cargo "+$toolchain" --version >/dev/null 2>&1 || {
    echo "fuzz: nightly Rust is missing: rustup toolchain install nightly --profile minimal" >&2
    exit 1
}
cargo fuzz --version >/dev/null 2>&1 || { echo "fuzz: cargo-fuzz is missing: cargo install --locked cargo-fuzz" >&2; exit 1; }

targets=("$@") failed=()
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo "+$toolchain" fuzz list)
for target in "${targets[@]}"; do
    case $target in
    config) dictionary=fuzz/config.dict ;;
    framing) dictionary=fuzz/http.dict ;;
    *) dictionary=fuzz/json.dict ;;
    esac
    printf '\n== %s, %d s\n' "$target" "$seconds"
    mkdir -p ".cache/fuzz/$target"
    # The crate forbids unsafe code, so a sanitizer would only slow this down.
    cargo "+$toolchain" fuzz run --sanitizer none "$target" ".cache/fuzz/$target" "fuzz/corpus/$target" -- \
        -dict="$dictionary" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -max_len=8192 -verbosity=1 -print_final_stats=1 ||
        failed+=("$target")
done
[ ${#failed[@]} = 0 ] || { echo "fuzz: failed: ${failed[*]}" >&2; exit 1; }
