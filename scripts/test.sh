#!/usr/bin/env bash
# Everything a developer must see pass. scripts/test.sh [STAGE...] with stages fmt lint test doc deny; none = all of these.
# Stage aarch64, by itself only: whether it compiles for 64-bit ARM (some minutes more, and a cross compiler).
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
notes=() # what was not checked; repeated at the end so that nobody misses it

say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }
skip() {
    notes+=("$*")
    printf '\n!! NOT CHECKED: %s\n' "$*" >&2
}

stage_fmt() {
    say "format"
    cargo fmt --check
}

stage_lint() {
    say "lints, warnings are errors"
    cargo clippy --locked --all-targets -- -D warnings
    say "the core without its optional native parts"
    cargo clippy --locked --no-default-features -- -D warnings
    say "scripts"
    find scripts demo tests -name '*.sh' -print0 | xargs -0 -n 1 bash -n
    bash -n .ci/run
    "${PYTHON:-python3}" scripts/check_syntax.py scripts demo tests dashboards
    "${PYTHON:-python3}" dashboards/make.py --check
}

stage_test() {
    # Tests that need these fail instead of skipping when they are absent.
    export CEMA_REQUIRE_EMBEDDER=1
    export CEMA_TEST_LLAMA=$PWD/.cache/llama/bin/python
    export CEMA_TEST_SDK=$PWD/.cache/sdk/bin/python
    export CEMA_TEST_CLIENTS=$PWD/.cache
    if command -v prometheus >/dev/null && command -v promtool >/dev/null && command -v chromium >/dev/null; then
        CEMA_TEST_OPERATIONS=$(command -v "${PYTHON:-python3}")
        export CEMA_TEST_OPERATIONS
    else
        say "SKIPPED: boards on Prometheus, status page in Chromium (apt-get install prometheus chromium)"
    fi
    say "script tests"
    "$CEMA_TEST_SDK" -B -m unittest discover --start-directory demo
    say "documentation tests"
    cargo test --locked --doc
    say "tests"
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --locked
    else
        cargo test --locked --lib --bins --tests --examples
    fi
}

stage_doc() {
    say "API documentation, warnings are errors"
    # Developers read these pages with private items in, so module docs may link to private parts.
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
        cargo doc --locked --no-deps --document-private-items
}

stage_deny() {
    if ! cargo deny --version >/dev/null 2>&1; then
        skip "licences, sources and duplicate versions of dependencies: cargo-deny is absent (cargo install --locked cargo-deny)"
        return
    fi
    say "licences, sources and duplicate versions of dependencies"
    cargo deny check bans licenses sources
}

stage_aarch64() {
    local target=aarch64-unknown-linux-gnu prefix=aarch64-linux-gnu
    if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
        skip "64-bit ARM: the target is absent (rustup target add $target)"
        return
    fi
    if ! command -v $prefix-g++ >/dev/null; then
        skip "64-bit ARM: the cross compiler is absent (apt-get install g++-$prefix)"
        return
    fi
    say "64-bit ARM"
    CC_aarch64_unknown_linux_gnu=$prefix-gcc CXX_aarch64_unknown_linux_gnu=$prefix-g++ \
        cargo check --locked --target $target --lib --bins
}

[ $# -gt 0 ] || set -- fmt lint test doc deny
for stage in "$@"; do
    case $stage in
    fmt | lint | test | doc | deny | aarch64) "stage_$stage" ;;
    *)
        echo "unknown stage '$stage'; there are: fmt lint test doc deny aarch64" >&2
        exit 2
        ;;
    esac
done

printf '\nPassed: %s, in %d min %d s.\n' "$*" $((SECONDS / 60)) $((SECONDS % 60))
for note in ${notes[@]+"${notes[@]}"}; do printf 'NOT CHECKED: %s\n' "$note"; done
