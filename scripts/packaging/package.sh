#!/usr/bin/env bash
# Packs an installation for other machines; `make dist` and `make deb` call it.
#   package.sh tarball STAGE GLIBC OUT              STAGE (bin/, share/) becomes OUT/NAME-OF-STAGE.tar.gz
#   package.sh deb STAGE GLIBC OUT VERSION          STAGE (usr/) becomes OUT/ztrain_VERSION_amd64.deb
# GLIBC is the newest C library that the binary may need (scripts/check-dist.py). Licences of the libraries inside the binary are
# taken from this machine's Debian packages; CUDA_RUNTIME is the version of CUDA if that is inside too. The same files give the
# same package, bit for bit.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
case ${1-} in
tarball | deb) ;;
*) echo "package.sh: unknown kind '${1-}'; hint: tarball or deb" >&2 && exit 2 ;;
esac
kind=$1 stage=$2 glibc=$3 out=$4 version=${5-}
here=$(dirname "$0")
prefix=$stage
[ "$kind" = tarball ] || prefix=$stage/usr
documents=$prefix/share/doc/ztrain
binary=$prefix/bin/ztrain

objcopy --strip-debug "$binary" # symbols stay, for backtraces
said=$("$here/../check-dist.py" "$binary" --glibc "$glibc")
echo "$said"
glibc=$(sed -n 's/.*needs glibc \([0-9.]*\).*/\1/p' <<<"$said")

# The licences of what is inside: the package's own file for each library.
mkdir -p "$documents/licences"
openmp=$(realpath "$(gcc -print-file-name=libgomp.a)")
packages=(libyaml-dev libjansson-dev libzstd-dev libxxhash-dev libsodium-dev liburing-dev libpcre2-dev libutf8proc-dev
    "$(dpkg-query -S "$openmp" | sed 's/:.*//')")
for package in "${packages[@]}"; do
    if ! cp -L "/usr/share/doc/$package/copyright" "$documents/licences/$package.txt"; then
        echo "package.sh: there is no licence of $package, which is inside the binary; hint: pack on Debian or Ubuntu" >&2
        exit 1
    fi
done
if [ -n "${CUDA_RUNTIME:-}" ]; then
    cat >"$documents/licences/cuda-runtime.txt" <<TEXT
The CUDA run time (libcudart_static.a, $CUDA_RUNTIME), which NVIDIA's CUDA Toolkit End User License Agreement lets
programs distribute, is linked into bin/ztrain. Copyright NVIDIA Corporation. All rights reserved.
TEXT
fi
find "$stage" -type d -exec chmod 755 {} +
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH=$epoch

case $kind in
tarball)
    # Wherever it is unpacked, run specs find their models from share/ztrain.
    sed -i 's|config: /share/ztrain/configs/|config: configs/|' "$stage"/share/ztrain/configs/*.yaml
    cp LICENSE NOTICE "$stage/"
    cat >"$stage/INSTALL" <<TEXT
This folder has ztrain for Linux on x86-64 with glibc $glibc or newer. bin/ztrain needs nothing else.

    bin/ztrain version                      whether it runs here
    export PATH="\$PWD/bin:\$PATH"            use it from this folder, or
    cp -r bin share ~/.local/               install it, without root

bin/ztrain-tokenize and bin/ztrain-wandb need Python 3.9. For a model's tokenizer and chat template:

    python3 -m venv ~/.venv-ztrain && ~/.venv-ztrain/bin/pip install tokenizers jinja2
    export PATH="\$HOME/.venv-ztrain/bin:\$PATH"

Run specs are in share/ztrain/configs: start those that name configs/models/ in share/ztrain. Pages are in share/doc/ztrain,
first README.md and docs/install.md.
TEXT
    name=$(basename "$stage")
    tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -C "$(dirname "$stage")" -cf - "$name" | gzip -9n >"$out/$name.tar.gz.new"
    mv "$out/$name.tar.gz.new" "$out/$name.tar.gz"
    ls -l "$out/$name.tar.gz"
    ;;
deb)
    gzip -9n "$prefix/share/man/man1/ztrain.1"
    cat NOTICE - >"$documents/copyright" <<'TEXT'

Licensed under the Apache License 2.0, /usr/share/common-licenses/Apache-2.0. The folder licences has those of the libraries
that are linked into the binary.
TEXT
    size=$(du -sk --apparent-size "$stage" | cut -f1)
    mkdir -p "$stage/DEBIAN"
    sed -e "s/@VERSION@/$version/" -e "s/@GLIBC@/$glibc/" -e "s/@SIZE@/$size/" "$here/control.in" >"$stage/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$stage" "$out/ztrain_${version}_amd64.deb" >/dev/null
    ls -l "$out/ztrain_${version}_amd64.deb"
    ;;
esac
