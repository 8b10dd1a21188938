# SPDX-License-Identifier: Apache-2.0
"""ztrain for Spack, from a source tree: spack repo add scripts/packaging/spack && spack dev-build ztrain@0.3.0"""
from spack.package import *

try:  # where Spack 1.0 has them; before, spack.package did
    from spack_repo.builtin.build_systems.cuda import CudaPackage
    from spack_repo.builtin.build_systems.makefile import MakefilePackage
except ImportError:
    pass


class Ztrain(MakefilePackage, CudaPackage):
    """Trainer of causal language models in C, sharded by ZeRO stages 0 to 3."""

    license("Apache-2.0")

    version("0.3.0")  # no address: dev-build takes the folder that it is called in

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    for library in ("libyaml", "jansson", "zstd", "xxhash", "libsodium", "liburing", "pcre2@10.39:", "utf8proc"):
        depends_on(library)
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("cudnn", type="run", when="+cuda")
    depends_on("nccl", type="run", when="+cuda")

    conflicts("platform=darwin", msg="ztrain runs on Linux")

    def settings(self):
        if self.spec.satisfies("+cuda"):
            return ["CC=cc", "CUDA=1", f"NVCC={self.spec['cuda'].prefix.bin.nvcc}", f"PREFIX={self.prefix}"]
        return ["CC=cc", "CUDA=0", f"PREFIX={self.prefix}"]

    def build(self, spec, prefix):
        make("all", "manual", *self.settings())

    def install(self, spec, prefix):
        make("install", *self.settings())
