# ztrain: `make` builds build/ztrain, `make help` lists the targets.
#
#   CC=clang                            another compiler (with a separate BUILD)
#   SANITIZE=address|thread|fuzzer      an instrumented build in build/<name>; address includes undefined behaviour,
#                                       thread and fuzzer are built without OpenMP, fuzzer needs clang
#   WERROR=1                            warnings are errors, as in .ci/run (off by default, for the sake of compilers that were never tried)
#   CUDA=0|1                            without or with the CUDA device (with a separate BUILD for each); the default is 1
#                                       where nvcc is found, and 0 in instrumented builds
#   BUILD=DIR PREFIX=DIR DESTDIR=DIR    where the build and the installation go
#   DEBUG=-g1                           debug information with lines only: quicker builds, as in .ci/run (the default is -g)
#   V=1                                 prints whole commands instead of one short line a file (-s: nothing)
# SPDX-License-Identifier: Apache-2.0

ifeq ($(origin CC),default)
CC = gcc
endif
SANITIZE ?=
WERROR ?= 0
BUILD ?= build$(if $(SANITIZE),/$(SANITIZE))
PREFIX ?= /usr/local
# One short line for each file that is made, $(call say,WHAT,FILE); V=1 shows the commands instead, -s nothing.
ifeq ($(V),1)
else ifneq ($(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),)
Q = @
else
Q = @
say = @printf '  %-7s %s\n' '$(1)' '$(2)'
endif
CLANG_FORMAT ?= $(firstword $(shell command -v clang-format-14 clang-format) clang-format)

WARNINGS = -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(filter 1,$(WERROR)),-Werror)
OPTIMIZE ?= $(if $(SANITIZE),-O1,-O2)
DEBUG ?= -g
CFLAGS_COMMON = -std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -I. $(DEBUG) -fno-math-errno $(WARNINGS) -MMD -MP $(CFLAGS)
CFLAGS_ALL = $(OPTIMIZE) $(CFLAGS_COMMON)
# A build ID, which not every linker makes by itself: a GPU is tested once for each (cmd/engine/gpu_test.h).
LDFLAGS_ALL = -Wl,--build-id
# STATIC_LIBRARIES=1 links the small libraries and gcc's OpenMP statically, for a machine that lacks them
LIBRARIES = yaml jansson zstd xxhash sodium uring pcre2-8 utf8proc
LDLIBS_ALL = $(if $(filter 1,$(STATIC_LIBRARIES)),$(LIBRARIES:%=-l:lib%.a) -l:libgomp.a,$(LIBRARIES:%=-l%)) -ldl -lpthread -lm $(LDLIBS)

# Instrumented builds also have the fault hooks (ZTRAIN_FAULTS). The emulated GPU's C files are compiled with the same flags as
# SANITIZE=address, so that a compiler cache has most of them once. Their warnings are no errors: some are false at -O1.
CFLAGS_INSTRUMENTED = $(SANITIZERS_$(1)) -fno-omit-frame-pointer -DZTRAIN_FAULTS=1 -ffile-prefix-map=$(CURDIR)=. -Wno-error \
	$(if $(findstring clang,$(CC)),,-Wno-format-truncation -Wno-maybe-uninitialized)
SANITIZERS_address = -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZERS_thread = -fsanitize=thread
SANITIZERS_fuzzer = -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
ifneq ($(SANITIZE),)
ifeq ($(SANITIZERS_$(SANITIZE)),)
$(error unknown SANITIZE '$(SANITIZE)'; hint: address, thread or fuzzer)
endif
CFLAGS_ALL += $(call CFLAGS_INSTRUMENTED,$(SANITIZE))
LDFLAGS_ALL += $(SANITIZERS_$(SANITIZE))
ifeq ($(SANITIZE),fuzzer) # keeps the input after an abort, but not after an exit
CFLAGS_ALL += -DZTRAIN_BUG_ABORTS=1
endif
endif
# Neither tool understands the OpenMP run time, so these builds ignore the pragmas.
ifneq ($(filter thread fuzzer,$(SANITIZE)),)
CFLAGS_ALL += -Wno-unknown-pragmas
else
CFLAGS_ALL += -fopenmp
LDFLAGS_ALL += $(if $(filter 1,$(STATIC_LIBRARIES)),,-fopenmp)
endif

# The CPU's ops are compiled once for each instruction-set level and chosen by CPUID at run time. Products may be
# contracted to fused multiply-adds. (Instrumented, the three at -O3 would take longer than all other files together.)
OPS_CPU_FLAGS = $(if $(SANITIZE),,-O3) -ffp-contract=fast -Wno-psabi
CFLAGS_gpu_cpu_kernels_cpu_kernels_baseline = $(OPS_CPU_FLAGS)
CFLAGS_gpu_cpu_kernels_cpu_kernels_avx2 = $(OPS_CPU_FLAGS)
CFLAGS_gpu_cpu_kernels_cpu_kernels_avx512 = $(OPS_CPU_FLAGS)
ifneq ($(filter x86_64-% amd64-%,$(shell $(CC) -dumpmachine)),)
CFLAGS_gpu_cpu_kernels_cpu_kernels_avx2 += -march=x86-64-v3
CFLAGS_gpu_cpu_kernels_cpu_kernels_avx512 += -march=x86-64-v4 -mprefer-vector-width=512
endif

# The rooms of the house (docs/architecture.md): its library, and the program around it.
ROOMS = core core/training core/model core/metrics core/flight core/spec core/data core/storage core/text core/quantization \
	gpu gpu/cpu gpu/cpu/kernels gpu/cuda gpu/cuda/attention gpu/cuda/gemm gpu/cuda/ops gpu/simulate gpu/open gpu/model \
	comm comm/wire comm/launch comm/control comm/zero ckpt ckpt/huggingface
CMD_ROOMS = cmd cmd/report cmd/train cmd/save cmd/supervise cmd/observe cmd/run cmd/engine
# Files that only a build with CUDA has. The others of gpu/cuda include none of its headers.
CUDA_IN_EVERY_BUILD = $(addprefix gpu/cuda/,cuda_reserve.c cuda_workspace.c nvml.c)
CUDA_ONLY_C = $(filter-out $(CUDA_IN_EVERY_BUILD),$(wildcard gpu/cuda/*.c gpu/cuda/*/*.c)) comm/transport_nccl.c
UNIT_SOURCES := $(sort $(shell find tests/unit -name 'test_*.c'))
UNIT_FOLDERS := $(patsubst %/,%,$(sort $(dir $(UNIT_SOURCES))))
CUDA_ONLY_TESTS := $(foreach test,$(UNIT_SOURCES),$(if $(strip $(foreach word,cuda cudnn nccl,$(findstring $(word),$(notdir $(test))))),$(test)))
LIB_SOURCES = $(foreach room,$(ROOMS),$(wildcard $(room)/*.c))
CMD_SOURCES = $(foreach room,$(CMD_ROOMS),$(wildcard $(room)/*.c))

# CUDA. The .cu files are compiled for these architectures as far as nvcc knows them, and to PTX of the last one but 120,
# which newer GPUs translate. Code for 80 also serves 8.6 and 8.9, for 100 10.3, for 120 12.1; that for 90 is 90a's, which
# has wgmma; that for 120 is made from the PTX of 100, which spares a pass of the compiler. The run time is linked statically
# and the other libraries are opened when needed: the binary starts without a driver.
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(and $(NVCC),$(shell command -v $(CXX)),$(if $(SANITIZE),,1)),1,0)
ifeq ($(CUDA),1)
ifeq ($(NVCC),)
$(error CUDA=1, but there is no nvcc; hint: NVCC=/path/to/nvcc, or CUDA=0)
endif
ifeq ($(origin CUDA_ARCHITECTURES),undefined)
CUDA_ARCHITECTURES := $(patsubst compute_%,%,$(filter compute_80 compute_90 compute_100 compute_120,$(shell $(NVCC) --list-gpu-arch)))
endif
CUDA_PTX := $(or $(lastword $(filter-out 120,$(CUDA_ARCHITECTURES))),120)
comma = ,
empty =
CFLAGS_gpu_cuda_ops_ops_cuda += -DZTRAIN_CUDA_CODE=$(subst $(empty) $(empty),$(comma),$(strip $(CUDA_ARCHITECTURES)))
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
CU_SOURCES = $(wildcard gpu/cuda/*/*.cu)
CFLAGS_ALL += -DZTRAIN_CUDA=1 -isystem $(CUDA_HOME)/include
LDLIBS_ALL += -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib -lcudart_static -lrt
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -I. -DZTRAIN_CUDA=1 -D_GNU_SOURCE -MMD -MP \
	$(foreach arch,$(CUDA_ARCHITECTURES:90=90a),-gencode arch=compute_$(if $(filter 120,$(arch)),$(CUDA_PTX),$(arch))$(comma)code=sm_$(arch)) \
	-gencode arch=compute_$(CUDA_PTX)$(comma)code=compute_$(CUDA_PTX) -DZTRAIN_SM90A=$(words $(filter 90,$(CUDA_ARCHITECTURES))) \
	-Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-g -Xptxas -warn-spills,-warn-lmem-usage \
	$(if $(filter 1,$(WERROR)),-Werror all-warnings -Xptxas -Werror) $(NVCCFLAGS)
else
LIB_SOURCES := $(filter-out $(CUDA_ONLY_C),$(LIB_SOURCES))
UNIT_SOURCES := $(filter-out $(CUDA_ONLY_TESTS),$(UNIT_SOURCES))
endif

ifneq ($(SANITIZE),)
LIB_SOURCES += tests/faults/fault_hooks.c $(if $(filter fuzzer,$(SANITIZE)),,tests/faults/chosen_gather.c)
LDFLAGS_ALL += -Wl,--wrap=zero_verbs
endif
# No target parses with these rooms; a target that does, and does not link, takes one off the list.
ifeq ($(SANITIZE),fuzzer)
LIB_SOURCES := $(filter-out gpu/% comm/zero/% comm/launch/%,$(LIB_SOURCES))
endif

# The kernels come first: nvcc takes longest.
LIB_OBJECTS = $(CU_SOURCES:%.cu=$(BUILD)/obj/%.o) $(LIB_SOURCES:%.c=$(BUILD)/obj/%.o)
CMD_OBJECTS = $(CMD_SOURCES:%.c=$(BUILD)/obj/%.o)
UNIT_TESTS = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(UNIT_SOURCES)))
FUZZ_TARGETS = $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
C_FILES = $(foreach folder,$(ROOMS) $(CMD_ROOMS) $(UNIT_FOLDERS) tests/unit/fixtures tests/bench tests/ops tests/fuzz tests/faults tests/text,$(wildcard $(folder)/*.[ch] $(folder)/*.cu $(folder)/*.cuh))

.DELETE_ON_ERROR:
.PHONY: FORCE gpu-build all all-objects all-tests bench check-docs check-format check-functions check-layers clean count-objects deb dist dist-compiler doc fault-tools format \
	fuzz fuzz-targets help install manual quickstart test test-faults test-slurm uninstall unit-tests

#: all            build/ztrain (the default)
all: $(BUILD)/ztrain

# A missing compiler or header is reported once, with the way to get it, not by every file that includes it.
# $(1): the headers, $(2): options of install-deps.sh
define find_headers
	@mkdir -p $(@D)
	@command -v $(firstword $(CC)) >/dev/null || \
		{ echo "make: there is no C compiler '$(firstword $(CC))'; hint: scripts/install-deps.sh installs what is needed" >&2; exit 1; }
	@missing=; for h in $(1); do \
		echo "#include <$$h>" | $(CC) $(CFLAGS) -DPCRE2_CODE_UNIT_WIDTH=8 -E -x c - >/dev/null 2>&1 || missing="$$missing $$h"; done; \
		[ -z "$$missing" ] || { echo "make: headers are missing:$$missing; hint: $(strip scripts/install-deps.sh $(2)) installs them" >&2; exit 1; }
	@touch $@
endef
$(BUILD)/headers: Makefile
	$(call find_headers,yaml.h jansson.h zstd.h xxhash.h sodium.h liburing.h pcre2.h utf8proc.h)
$(BUILD)/headers-tests: $(BUILD)/headers
	$(call find_headers,cmocka.h,--test)
# What objects are compiled with. Another compiler, device or flag in the same BUILD compiles all of them anew: a program made of
# both would be wrong without a word. Warnings as errors change no object.
SETTINGS = $(strip $(CC) $(filter-out -Werror,$(CFLAGS_ALL)) $(if $(filter 1,$(CUDA)),$(NVCC) $(CUDA_ARCHITECTURES)))
$(BUILD)/settings: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(SETTINGS))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(SETTINGS))' >$@
FORCE:

$(BUILD)/obj/%.o: %.c $(BUILD)/settings Makefile | $(BUILD)/headers
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(CFLAGS_$(subst /,_,$*)) -c $< -o $@

# The assembler puts these files into the object (.incbin), which no list of headers mentions.
PAGE_FILES = $(addprefix cmd/report/page.,html css js)
$(BUILD)/obj/cmd/report/report_page.o: $(PAGE_FILES)

$(BUILD)/obj/%.o: %.cu $(BUILD)/settings Makefile
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/libztrain.a: $(LIB_OBJECTS)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)ar rcs $@ $^

$(BUILD)/ztrain: $(BUILD)/libztrain.a $(CMD_OBJECTS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LDFLAGS) $(CMD_OBJECTS) $< $(LDLIBS_ALL) -o $@

# A test is found by its name, whatever room of tests/unit it is in.
UNIT_OBJECTS = $(patsubst %.c,$(BUILD)/obj/%.o,$(UNIT_SOURCES) $(wildcard tests/bench/bench_*.c))
$(UNIT_OBJECTS): | $(BUILD)/headers-tests
$(foreach object,$(UNIT_OBJECTS),$(eval $(BUILD)/tests/$(basename $(notdir $(object))): $(object)))
$(BUILD)/tests/%: $(BUILD)/libztrain.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LDFLAGS) $(filter %.o,$^) $< -lcmocka $(LDLIBS_ALL) -o $@

$(BUILD)/fuzz/%: tests/fuzz/%.c $(BUILD)/libztrain.a $(BUILD)/settings Makefile
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -MF $(BUILD)/fuzz/$*.d $< $(BUILD)/libztrain.a $(LDFLAGS_ALL) -fsanitize=fuzzer $(LDFLAGS) $(LDLIBS_ALL) -o $@

#: all-objects    compiles everything without linking
all-objects: $(LIB_OBJECTS) $(CMD_OBJECTS)

# For scripts/quickstart.sh: how many objects the program has, and how many of them are nvcc's.
count-objects:
	@echo $(words $(LIB_OBJECTS) $(CMD_OBJECTS)) $(words $(CU_SOURCES))

#: all-tests      builds the C test programs without running them
all-tests: $(UNIT_TESTS)

#: unit-tests     builds and runs the C tests
OPS_TEST_OBJECTS = $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/ops/*.c))
$(BUILD)/ops-test: $(OPS_TEST_OBJECTS) $(BUILD)/libztrain.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LDFLAGS) $^ $(LDLIBS_ALL) -o $@

unit-tests: $(UNIT_TESTS)
	tests/run-unit.sh $(BUILD)

# What the tests of tests/interop compare with `tokenizers`.
$(BUILD)/tokens-of: tests/text/tokens_of.c $(BUILD)/libztrain.a $(BUILD)/settings Makefile
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -MF $@.d $< $(BUILD)/libztrain.a $(LDFLAGS_ALL) $(LDFLAGS) $(LDLIBS_ALL) -o $@

#: test           every test that needs no GPU and no cluster (scripts/test.sh)
test:
	scripts/test.sh

#: test-slurm     tests of several nodes, in a real Slurm of two and of four nodes on this machine (tests/run-cluster.sh)
test-slurm:
	tests/run-cluster.sh

# Programs that break runs; call_breaker needs the registers of x86-64.
FAULT_TOOLS = $(BUILD)/faults/failing_malloc.so $(if $(filter x86_64-% amd64-%,$(shell $(CC) -dumpmachine)),$(BUILD)/faults/call_breaker)
FAULT_CFLAGS = -std=c11 -D_GNU_SOURCE -O2 -g $(WARNINGS)
$(BUILD)/faults/%.so: tests/faults/%.c Makefile
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(FAULT_CFLAGS) -fPIC -shared $< -o $@ -ldl
$(BUILD)/faults/call_breaker: tests/faults/call_breaker.c Makefile
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(FAULT_CFLAGS) $< -o $@

#: fault-tools    the programs with which the sweeps of tests/faults break runs
fault-tools: $(FAULT_TOOLS)

#: test-faults    breaks tiny runs on purpose (memory, system calls, kills, power), for an hour: tests/faults/README.md
test-faults: all fault-tools
	tests/faults/sweep.py --ztrain $(BUILD)/ztrain --all

#: quickstart     from nothing to a trained, exported model in a few minutes (scripts/quickstart.sh)
quickstart:
	scripts/quickstart.sh

#: bench          speed on this machine: GPT-2 124M, tokens/s, time by op, memory
bench: all
	scripts/bench.py --ztrain $(BUILD)/ztrain

#: gpu-build      build/gpu: ztrain and ops-test with the small libraries linked statically, for scripts/gpu-check.sh
gpu-build:
	$(MAKE) BUILD=build/gpu CUDA=1 STATIC_LIBRARIES=1 build/gpu/ztrain build/gpu/ops-test

# An emulated AMX for CPUs without it: tests/amx/amx.c.
$(BUILD)/amx/libamx.so: tests/amx/amx.c Makefile
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -std=c11 -O3 -march=x86-64-v4 -mprefer-vector-width=512 -ffp-contract=fast -ftls-model=initial-exec \
		$(WARNINGS) -Wno-psabi -fPIC -shared $< -o $@

#: fuzz           runs every fuzz target for FUZZ_SECONDS (10); needs clang
FUZZ_SECONDS ?= 10
fuzz:
	$(MAKE) SANITIZE=fuzzer CC=clang fuzz-targets
	tests/run-fuzz.sh build/fuzzer $(FUZZ_SECONDS)
fuzz-targets: $(FUZZ_TARGETS)

#: check-layers   no include goes upwards or in a circle; check-docs: pages name files that exist; check-functions: their length
check-layers:
	scripts/check-layers.py
check-functions:
	scripts/check-functions.py
check-docs:
	scripts/check-docs.py

#: format         formats all C files; check-format only checks them
format:
	$(call say,FORMAT,$(words $(C_FILES)) files)
	$(Q)$(CLANG_FORMAT) -i $(C_FILES)
check-format:
	$(call say,CHECK,the format of $(words $(C_FILES)) files)
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(C_FILES)

#: doc            makes the tables of docs/run-spec*.md from the binary's table of keys
doc: all
	scripts/spec-pages.py $(BUILD)/ztrain > $(BUILD)/run-spec.md
	sed -i '/^<!-- run-spec.*\.md:/,$$d' docs/run-spec*.md
	awk '/^<!-- run-spec.*\.md:/ { page = "docs/" substr($$2, 1, length($$2) - 1) } { print >> page }' $(BUILD)/run-spec.md

#: manual         build/share: the man page and the completion for bash, from the binary's own help
MANUAL = $(BUILD)/share/man/man1/ztrain.1
COMPLETION = $(BUILD)/share/bash-completion/completions/ztrain
manual: $(MANUAL)
$(MANUAL): $(BUILD)/ztrain scripts/make-manual.py scripts/spec-pages.py docs/environment.md
	$(call say,MANUAL,$(BUILD)/share)
	$(Q)scripts/make-manual.py $(BUILD)/ztrain $(BUILD)/share

#: install        into PREFIX (/usr/local): ztrain, ztrain-tokenize, ztrain-wandb, man page, completion, run specs, documents
#: uninstall      removes what install put there, with the same PREFIX and DESTDIR
SHARE = $(DESTDIR)$(PREFIX)/share
PROGRAM ?= $(BUILD)/ztrain
# What goes into share/ztrain (programs, files) and into share/doc/ztrain. The commands in bin/ are links to the programs, relative
# ones, so that the installation can be moved.
INSTALLED_PROGRAMS = scripts/tokenize.py scripts/to_wandb.py scripts/slurm/train.sbatch
INSTALLED_FILES = $(wildcard scripts/tokenization/*.py) $(filter-out configs/quickstart.yaml,$(wildcard configs/*.yaml configs/models/*.json))
INSTALLED_PAGES = $(wildcard *.md docs/*.md docs/pictures/*.png) LICENSE NOTICE CITATION.cff
define install_files
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/ztrain
	install -D -m 644 $(MANUAL) $(SHARE)/man/man1/ztrain.1
	install -D -m 644 $(COMPLETION) $(SHARE)/bash-completion/completions/ztrain
	for f in $(INSTALLED_PROGRAMS); do install -D -m 755 $$f $(SHARE)/ztrain/$$f || exit 1; done
	for f in $(INSTALLED_FILES); do install -D -m 644 $$f $(SHARE)/ztrain/$$f || exit 1; done
	for f in $(INSTALLED_PAGES); do install -D -m 644 $$f $(SHARE)/doc/ztrain/$$f || exit 1; done
	sed -i 's|config: configs/models/|config: $(PREFIX)/share/ztrain/configs/models/|' $(SHARE)/ztrain/configs/*.yaml
	ln -sfn ../share/ztrain/scripts/tokenize.py $(DESTDIR)$(PREFIX)/bin/ztrain-tokenize
	ln -sfn ../share/ztrain/scripts/to_wandb.py $(DESTDIR)$(PREFIX)/bin/ztrain-wandb
endef
install: all manual
	$(install_files)

uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,ztrain ztrain-tokenize ztrain-wandb)
	rm -f $(SHARE)/man/man1/ztrain.1 $(SHARE)/bash-completion/completions/ztrain
	rm -f $(addprefix $(SHARE)/ztrain/,$(INSTALLED_PROGRAMS) $(INSTALLED_FILES)) $(addprefix $(SHARE)/doc/ztrain/,$(INSTALLED_PAGES))
	rm -rf $(SHARE)/ztrain/scripts/tokenization/__pycache__
	for d in $(wildcard $(SHARE)/ztrain $(SHARE)/doc/ztrain); do find $$d -depth -type d -empty -delete; done
	for d in $(wildcard $(addprefix $(SHARE)/,doc bash-completion/completions bash-completion)); do rmdir --ignore-fail-on-non-empty $$d; done

#: dist           build/ztrain-VERSION-linux-x86_64.tar.gz, whose binary needs glibc only (docs/install.md)
#: deb            build/ztrain_VERSION_amd64.deb, with the same binary
VERSION := $(shell sed -n 's/^.define ZTRAIN_VERSION "\(.*\)"/\1/p' core/version.h)
DIST_NAME = ztrain-$(VERSION)-linux-x86_64
# The newest glibc that the binary may need: this machine's. A binary made with scripts/packaging/sysroot.sh needs less.
DIST_GLIBC ?= $(lastword $(shell getconf GNU_LIBC_VERSION))
PACKAGE = $(if $(filter 1,$(CUDA)),CUDA_RUNTIME="$$($(NVCC) --version | sed -n 's/.*release/release/p')" )scripts/packaging/package.sh
$(BUILD)/dist/ztrain: private STATIC_LIBRARIES = 1
$(BUILD)/dist/ztrain: $(BUILD)/libztrain.a $(CMD_OBJECTS) | dist-compiler
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LDFLAGS) $(CMD_OBJECTS) $< $(LDLIBS_ALL) -o $@

dist-compiler:
	@case '$(CC)' in *clang*) echo "make: packages have gcc's OpenMP inside, which clang's objects do not use; hint: CC=gcc" >&2; exit 1 ;; esac

dist deb: override PROGRAM = $(BUILD)/dist/ztrain
dist: override DESTDIR = $(BUILD)/dist/$(DIST_NAME)
dist: override PREFIX =
dist: $(BUILD)/dist/ztrain manual
	rm -rf $(DESTDIR)
	$(install_files)
	$(PACKAGE) tarball $(DESTDIR) $(DIST_GLIBC) $(BUILD)

deb: override DESTDIR = $(BUILD)/dist/deb
deb: override PREFIX = /usr
deb: $(BUILD)/dist/ztrain manual
	rm -rf $(DESTDIR)
	$(install_files)
	$(PACKAGE) deb $(DESTDIR) $(DIST_GLIBC) $(BUILD) $(VERSION)

#: clean          removes build/
clean:
	rm -rf build

#: help           this list
help:
	@sed -n '2,11s/^# \{0,1\}//p' Makefile
	@sed -n 's/^#: /  make /p' Makefile

-include $(LIB_OBJECTS:.o=.d) $(CMD_OBJECTS:.o=.d) $(OPS_TEST_OBJECTS:.o=.d) $(UNIT_OBJECTS:.o=.d) $(wildcard $(BUILD)/fuzz/*.d)

# The CUDA sources compiled for the host: tests/emulation/emulation.h.
-include tests/emulation/emulation.mk
