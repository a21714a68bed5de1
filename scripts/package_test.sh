#!/usr/bin/env bash
# Installs the Debian package in a clean root and runs it there as its unit would.
#
#   scripts/package_test.sh [--prompts N] [DEB]      DEB: the newest of target/debian
#
# What is checked: scripts/check_package.py. --prompts: size of the quality store that memory is measured with (1000).
# Needs root on Linux and debootstrap; the first run fetches a minimal Debian of this machine's release from its own
# mirror into target/package_root.tar. Network, processes and mounts of the test are its own and end with it.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { # MESSAGE HOW...
    printf 'package test: %s\n' "$1" >&2
    shift
    [ $# = 0 ] || printf '    %s\n' "$@" >&2
    exit 1
}

prompts=1000 deb=
while [ $# -gt 0 ]; do
    case $1 in
    --prompts)
        prompts=${2:?usage: scripts/package_test.sh [--prompts N] [DEB]}
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" && exit ;;
    -*) fail "unknown option $1; see --help" ;;
    *) deb=$1 ;;
    esac
    shift
done

[ "$(id -u)" = 0 ] || fail "only root can make a root of its own"
for tool in debootstrap unshare setpriv dpkg-deb python3; do
    command -v "$tool" >/dev/null || fail "$tool is missing" "Debian, Ubuntu: apt-get install debootstrap util-linux dpkg python3"
done
[ -n "$deb" ] || deb=$(find target/debian -name 'cema-router_*.deb' -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -n 1 | cut -d ' ' -f 2-)
[ -f "$deb" ] || fail "there is no package" "make package"

base=target/package_root.tar
if [ ! -s "$base" ]; then
    # What the package depends on, without versions, so that dpkg alone installs it.
    needs=$(dpkg-deb --field "$deb" Depends | tr , '\n' | sed 's/^ *//;s/[ (|].*//' | paste -sd ,)
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | head -n 1)
    echo "package test: fetching a minimal Debian $suite"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    debootstrap --variant=minbase --include="$needs" "$suite" "$work/root" ${mirror:+"$mirror"} >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        fail "the clean root cannot be made"
    }
    tar --one-file-system -C "$work/root" -cf "$base.new" .
    mv "$base.new" "$base"
    rm -rf "$work"
    trap - EXIT
fi

root=$(mktemp -d "$PWD/target/package_root.XXXXXX")
trap 'rm -rf "$root" "$root.view"' EXIT
tar -C "$root" -xf "$base"
unshare --mount --net --pid --fork --kill-child --mount-proc python3 -B scripts/check_package.py "$root" "$deb" "$prompts"
