#!/usr/bin/env bash
# Runs a command on a fresh copy of the committed tree, in a bare Debian: no make, no compiler, no Python.
#   tests/run-fresh.sh COMMAND…          e.g.  tests/run-fresh.sh scripts/quickstart.sh
# The base system is made once by debootstrap (about half a minute) and kept in $FRESH_BASE (build/fresh/base), with this
# machine's package sources and proxy settings. It needs root. The exit status is the command's.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 2; }
cd "$(dirname "$0")/.."
base=${FRESH_BASE:-build/fresh/base}
mkdir -p "$(dirname "$base")"
base=$(realpath "$base")

if [ ! -e "$base.ready" ]; then
    rm -rf "$base"
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources 2>/dev/null | head -1)
    debootstrap --variant=minbase "$release" "$base" ${mirror:+"$mirror"} >"$base.log" 2>&1 || { tail -5 "$base.log" && exit 1; }
    cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d "$base/etc/apt/"
    touch "$base.ready"
fi

room=$(mktemp -d "$(dirname "$base")/run.XXXX")
trap 'rm -rf --one-file-system "$room"' EXIT
cp -a "$base" "$room/root"
cp /etc/resolv.conf /etc/hosts "$room/root/etc/"
git clone -q . "$room/root/src"
# The command has its own mount and process name spaces, so its mounts and processes end with it.
# shellcheck disable=SC2016
unshare --mount --pid --fork sh -c '
    root=$1
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    exec chroot "$root" /usr/bin/env -C /src DEBIAN_FRONTEND=noninteractive HOME=/root "$@"' sh "$room/root" "$@"
