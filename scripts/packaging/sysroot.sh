#!/usr/bin/env bash
# Makes the root of an older system to build against, so that a binary runs with its C library: scripts/packaging/sysroot.sh [DIR]
# DIR (build/sysroot) gets Debian 11's glibc 2.31, by debootstrap, and the headers and static libraries of this machine's Debian
# packages. Then it prints the make that uses it. It needs root, debootstrap (scripts/install-deps.sh --fresh), and half a minute.
# Its <math.h> names exp, log and pow of glibc 2.2.5: those of 2.29 have the same results. All else that ztrain needs is in 2.28.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
case ${1-} in -*) sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 2 ;; esac
cd "$(dirname "$0")/../.."
mkdir -p "$(dirname "${1:-build/sysroot}")"
root=$(realpath "${1:-build/sysroot}")
libraries=usr/lib/x86_64-linux-gnu

if [ ! -e "$root.ready" ]; then
    rm -rf "$root"
    mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1)
    debootstrap --variant=minbase --include=libc6-dev bullseye "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 ||
        { tail -5 "$root.log" >&2 && exit 1; }
    # The linker follows links from here, not from that root.
    find "$root/$libraries" "$root/usr/lib64" -maxdepth 1 -lname '/*' -print0 | while IFS= read -r -d '' link; do
        ln -srfn "$root$(readlink "$link")" "$link"
    done
    dpkg-query -L libyaml-dev libjansson-dev libzstd-dev libxxhash-dev libsodium-dev liburing-dev libpcre2-dev libutf8proc-dev |
        grep -E '^/usr/include/.*\.h$|\.a$' | while read -r file; do
        install -D -m 644 "$file" "$root$file"
    done
    cat >>"$root/usr/include/math.h" <<'TEXT'
__asm__(".symver exp,exp@GLIBC_2.2.5\n.symver log,log@GLIBC_2.2.5\n.symver pow,pow@GLIBC_2.2.5");
TEXT
    touch "$root.ready"
fi
echo "make dist STATIC_LIBRARIES=1 CC='gcc --sysroot=$root -B$root/$libraries' DIST_GLIBC=2.28"
