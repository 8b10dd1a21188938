#!/usr/bin/env bash
# Installs the packages that ztrain needs, on Debian and Ubuntu (apt-get), Rocky, Alma, RHEL 9 and Fedora (dnf). If none is
# missing, it ends at once.
#
#   scripts/install-deps.sh             what building and running needs: compiler, libraries, python3
#   scripts/install-deps.sh --test      also what scripts/test.sh needs: cmocka, pytest
#   scripts/install-deps.sh --check     also what .ci/run needs: clang, ccache, linters, venv; Chromium where apt has it
#   scripts/install-deps.sh --slurm     also Slurm, PMI and network tools, for make test-slurm; an installed Slurm stays
#   scripts/install-deps.sh --fresh     also debootstrap, for tests/run-fresh.sh
#   scripts/install-deps.sh --bench     also the libraries that make PyTorch fast, for scripts/bench-peers.sh
#   --quiet                             print something only if packages are installed
#
# It uses sudo unless it runs as root. If it has neither, it prints what else there is: the tarball of make dist, conda, Spack. While another
# apt is running, it waits up to $INSTALL_DEPS_PATIENCE seconds (600). dnf waits by itself; where packages are missing in its
# repositories, EPEL and CRB are enabled. On other systems this script succeeds if a test program builds, and otherwise prints which
# packages are needed.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() { sed -n '2,16s/^# \{0,1\}//p' "$0"; }

patience=${INSTALL_DEPS_PATIENCE:-600}

test_packages=0 check_packages=0 slurm_packages=0 fresh_packages=0 bench_packages=0 quiet=0
for argument in "$@"; do
    case $argument in
    --test) test_packages=1 ;;
    --check) test_packages=1 check_packages=1 ;;
    --slurm) test_packages=1 slurm_packages=1 ;;
    --fresh) fresh_packages=1 ;;
    --bench) bench_packages=1 ;;
    --quiet) quiet=1 ;;
    -h | --help) usage && exit 0 ;;
    *) echo "install-deps.sh: unknown option '$argument'; hint: see --help" >&2 && exit 2 ;;
    esac
done

packages=(gcc make libc6-dev libyaml-dev libjansson-dev libzstd-dev libxxhash-dev libsodium-dev liburing-dev libpcre2-dev
    libutf8proc-dev python3)
[ $test_packages = 0 ] || packages+=(libcmocka-dev python3-pytest)
[ $check_packages = 0 ] || packages+=(clang libomp-dev ccache clang-format shellcheck cppcheck python3-pyflakes python3-venv)
[ $fresh_packages = 0 ] || packages+=(debootstrap git)
[ $bench_packages = 0 ] || packages+=(libtcmalloc-minimal4 python3-venv python3-dev g++)

without_root="without root, take the tarball of 'make dist' from another machine, or build with the packages of conda or Spack:
    micromamba create -n ztrain c-compiler make yaml jansson zstd xxhash libsodium liburing pcre2 libutf8proc python
    spack install libyaml jansson zstd xxhash libsodium liburing pcre2 utf8proc
docs/install.md has the rest"

# Sets as_root to what makes a command root's. $@: the packages that it is for.
as_root=()
become_root() {
    [ "$(id -u)" != 0 ] || return 0
    if ! command -v sudo >/dev/null; then
        echo "install-deps.sh: cannot install packages: neither root nor sudo; hint: have these installed: $*" >&2
        echo "$without_root" >&2
        exit 1
    fi
    if ! sudo true; then # asks for a password, if it needs one
        echo "install-deps.sh: cannot install packages: sudo failed; hint: have these installed: $*" >&2
        echo "$without_root" >&2
        exit 1
    fi
    as_root=(sudo)
}

# The same packages by their names in Fedora and its relatives.
install_with_dnf() {
    local rpms=(gcc make glibc-devel libyaml-devel jansson-devel libzstd-devel xxhash-devel libsodium-devel liburing-devel pcre2-devel
        utf8proc-devel python3) missing=() package
    [ $test_packages = 0 ] || rpms+=(libcmocka-devel python3-pytest)
    [ $check_packages = 0 ] || rpms+=(clang libomp-devel ccache clang-tools-extra ShellCheck cppcheck python3-pyflakes)
    [ $fresh_packages = 0 ] || rpms+=(debootstrap git)
    [ $bench_packages = 0 ] || rpms+=(gperftools-libs python3-devel gcc-c++)
    if [ $slurm_packages = 1 ]; then
        rpms+=(iproute nftables)
        # A Slurm that dnf has not installed stays as it is.
        if rpm -q slurm >/dev/null 2>&1 || ! PATH=$PATH:/usr/sbin command -v slurmctld slurmd srun munged >/dev/null; then
            rpms+=(slurm slurm-slurmctld slurm-slurmd slurm-libpmi munge pmix-devel)
        fi
    fi
    for package in "${rpms[@]}"; do
        rpm -q "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    if [ ${#missing[@]} = 0 ]; then
        [ $quiet = 1 ] || echo "all packages are installed"
        return
    fi
    become_root "${missing[@]}"
    # Rocky, Alma and RHEL have some of them only in EPEL, and these need CRB. epel-release brings the command that enables it.
    for package in "${missing[@]}"; do
        if ! dnf -q list "$package" >/dev/null 2>&1; then
            echo "enabling EPEL and CRB for $package"
            if ! "${as_root[@]}" dnf -q -y install epel-release || ! "${as_root[@]}" crb enable >/dev/null; then
                echo "install-deps.sh: no repository of dnf has '$package', and EPEL could not be enabled; hint: enable EPEL and CRB" \
                    "(RHEL: CodeReady Builder), or take the tarball of 'make dist'" >&2
                return 1
            fi
            break
        fi
    done
    echo "installing ${missing[*]}"
    "${as_root[@]}" dnf -q -y install --setopt=install_weak_deps=False "${missing[@]}"
}

if ! command -v apt-get >/dev/null && command -v dnf >/dev/null; then
    install_with_dnf
    exit
fi

if ! command -v apt-get >/dev/null; then
    program='#include <jansson.h>
#include <liburing.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <sodium.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>
#include <zstd.h>
int main(void) { return 0; }'
    if echo "$program" | ${CC:-gcc} -x c - -o /dev/null -lyaml -ljansson -lzstd -lxxhash -lsodium -luring -lpcre2-8 -lutf8proc 2>/dev/null; then
        exit 0
    fi
    echo "install-deps.sh: neither apt-get nor dnf here; hint: install gcc, make, Python 3, and the headers of libyaml, jansson," \
        "zstd, xxHash, libsodium, liburing, PCRE2 and utf8proc (and cmocka, pytest for the tests), then run make" >&2
    echo "$without_root" >&2
    exit 1
fi

# installed PACKAGE: whether it is installed now
installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

if [ $slurm_packages = 1 ]; then
    packages+=(iproute2 nftables)
    # A Slurm that apt has not installed stays as it is. Debian's Slurm opens PMIx by a name that only libpmix-dev has.
    if installed slurm-wlm || ! PATH=$PATH:/usr/sbin command -v slurmctld slurmd srun munged >/dev/null; then
        packages+=(slurm-wlm munge libpmi2-0 libpmix2 libpmix-dev)
    fi
fi

# candidate PACKAGE: whether the package lists have a version to install
candidate() {
    apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'
}

missing=()
# Chromium, for tests of a page, is a package of Debian's, but not of Ubuntu's: .ci/run goes without it.
add_chromium() {
    if [ $check_packages = 1 ] && [[ " ${missing[*]} " != *" chromium "* ]] && ! command -v chromium >/dev/null && candidate chromium; then
        missing+=(chromium)
    fi
}
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done
add_chromium
if [ ${#missing[@]} = 0 ]; then
    [ $quiet = 1 ] || echo "all packages are installed"
    exit 0
fi

become_root "${missing[@]}"

update=0
for package in "${missing[@]}"; do
    candidate "$package" || update=1
done

# Another apt may be running, especially on a machine that has just started. apt's DPkg::Lock::Timeout waits for only one of
# its three locks, so a call that finds a lock taken is made again.
run_apt() {
    local log waiting=0
    log=$(mktemp)
    until "${as_root[@]}" env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 "$@" >"$log" 2>&1; do
        if ! grep -q 'Could not get lock' "$log" || [ $SECONDS -ge "$patience" ]; then
            echo "install-deps.sh: apt-get $1 failed:" >&2
            tail -20 "$log" >&2
            if grep -q 'Could not get lock' "$log"; then
                echo "install-deps.sh: another program kept the lock for $patience s; hint: try again when it is done, or wait longer:" \
                    "INSTALL_DEPS_PATIENCE=SECONDS" >&2
                rm -f "$log"
                exit 1
            fi
            rm -f "$log"
            return 1
        fi
        if [ $waiting = 0 ]; then
            echo "another program is installing packages; waiting for it, up to $patience s" \
                "($(sed -n 's/^E: \(Could not get lock.*\)/\1/p' "$log" | head -1))"
            waiting=1
        fi
        sleep 2
    done
    rm -f "$log"
}

if [ $update = 1 ]; then
    run_apt update
    add_chromium # the lists may have been empty
fi
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]}"
    # Package lists that are out of date name files that no longer exist: fetch new lists once and try again.
    run_apt install -y --no-install-recommends "${missing[@]}" || { run_apt update && run_apt install -y --no-install-recommends "${missing[@]}"; }
fi
