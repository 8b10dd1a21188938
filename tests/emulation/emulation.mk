# The emulated GPU (tests/emulation/emulation.h): ztrain's sources, C and CUDA, are compiled for the host and linked with
# a small run time in place of NVIDIA's libraries. Nothing of it is part of build/ztrain.
#
#   build/emulation/           kernels call the shadow (races, indices, uninitialised reads); C code with ASan and UBSan
#   build/emulation/address/   kernels with ASan and UBSan as well, without the shadow
#
# Each has ztrain, ops-test (train.device: cuda is "emulated GPU") and faults, programs with planted mistakes. The first also
# has tests/, the unit tests that need a GPU (tests/run-unit.sh build/emulation), and cudnn-plans, which asks the real cuDNN.
# SPDX-License-Identifier: Apache-2.0

EMULATION_INCLUDE ?= $(firstword $(foreach folder,$(CUDA_HOME) $(CUDA_PATH) /usr/local/cuda,\
	$(if $(wildcard $(folder)/include/cublasLt.h),$(folder)/include)))
EMULATION_ARCH := $(filter x86_64-%,$(shell $(CC) -dumpmachine))
EMU = build/emulation
EMU_CXX ?= g++

# The lines that a report names are relative to the top folder, wherever (and in whichever compiler cache) an object was made.
EMU_DEFINES = -DZTRAIN_EMULATION=1 -DZTRAIN_CUDA=1 -Itests/emulation -isystem $(EMULATION_INCLUDE)
EMU_COMMON = -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DZTRAIN_FAULTS=1 -I. $(EMU_DEFINES) \
	$(DEBUG) -ffile-prefix-map=$(CURDIR)=. -fno-omit-frame-pointer -fno-math-errno -MMD -MP $(if $(filter 1,$(WERROR)),-Werror)
EMU_SANITIZE = $(SANITIZERS_address)
EMU_C_FLAGS = -O1 $(CFLAGS_COMMON) $(call CFLAGS_INSTRUMENTED,address) -fopenmp $(EMU_DEFINES)
EMU_RUNTIME_FLAGS = -std=c++17 -O2 $(EMU_COMMON) -Wall -Wextra -Wshadow
EMU_CU_FLAGS = -x c++ -std=c++17 -O1 $(EMU_COMMON) -Wall -Wextra -Wno-unknown-pragmas -Wno-maybe-uninitialized \
	$(if $(shell grep -qw fma /proc/cpuinfo && echo 1),-mfma)
EMU_SHADOW_FLAGS = -O2 -fno-tree-vectorize -fsanitize=thread --param tsan-instrument-func-entry-exit=0

# The CPU's kernels are not under test here: they are those of the plain build.
EMU_PLAIN_C = $(wildcard gpu/cpu/kernels/cpu_kernels_*.c)
EMU_C = $(filter-out $(EMU_PLAIN_C),$(foreach room,$(ROOMS),$(wildcard $(room)/*.c))) tests/faults/fault_hooks.c
EMU_CU = $(wildcard gpu/cuda/*/*.cu)
EMU_RUNTIME = $(filter-out %/emulation_shadow.cc,$(wildcard tests/emulation/*.cc))
EMU_C_OBJECTS = $(EMU_C:%.c=$(EMU)/obj/%.o) $(EMU_PLAIN_C:%.c=$(BUILD)/obj/%.o)
EMU_RUNTIME_OBJECTS = $(EMU_RUNTIME:%.cc=$(EMU)/obj/%.o)
EMU_CMD_OBJECTS = $(patsubst %.c,$(EMU)/obj/%.o,$(foreach room,$(CMD_ROOMS),$(wildcard $(room)/*.c)))
EMU_UNIT_TESTS = $(patsubst %.c,$(EMU)/tests/%,$(notdir $(CUDA_ONLY_TESTS)))
EMU_OPS_OBJECTS = $(patsubst %.c,$(EMU)/obj/%.o,$(wildcard tests/ops/*.c))

$(EMU)/obj/cmd/report/report_page.o: $(PAGE_FILES)

# Red zones between the pieces of an arena: see tests/emulation/emulation_arena.cc.
# NVIDIA's libraries are found in the program itself: tests/emulation/emulation_libraries.cc.
EMU_LINK_FLAGS = $(EMU_SANITIZE) -fopenmp -rdynamic $(foreach function,arena_init arena_take dlopen dlsym,-Wl,--wrap=$(function))
EMU_LIBS = $(filter-out -L% -lcudart_static,$(LDLIBS_ALL))

.PHONY: emulation emulation-faults
ifeq ($(and $(EMULATION_INCLUDE),$(EMULATION_ARCH)),)
emulation emulation-faults:
	@echo "the emulated GPU is not built: it needs CUDA's headers (CUDA_HOME) and x86-64"
else
#: emulation      the emulated GPU: build/emulation/ztrain and ops-test (tests/emulation)
emulation: $(foreach program,ztrain ops-test faults,$(EMU)/$(program) $(EMU)/address/$(program)) $(EMU_UNIT_TESTS) $(EMU)/cudnn-plans
emulation-faults: $(EMU)/faults $(EMU)/address/faults
endif

# The real cuDNN where there is no driver: see tests/emulation/cudnn_plans.c.
EMU_PLANS_SOURCES = tests/emulation/cudnn_plans.c gpu/cuda/attention/attention_cudnn_graph.c gpu/cuda/gemm/gemm_cuda_gated_graph.c gpu/cuda/cudnn_graph.c gpu/cuda/cuda_libraries.c gpu/library_places.c core/status.c \
	core/heartbeat.c core/clock.c core/thread.c core/memory.c core/log.c \
	core/output.c core/printable.c core/io.c core/fsutil.c tests/faults/fault_hooks.c
$(EMU)/cudnn-plans: $(EMU_PLANS_SOURCES) $(EMU)/absent/libcuda.so.1 gpu/cuda/attention/attention_cudnn_graph.h gpu/cuda/cudnn_graph.h Makefile \
		tests/emulation/emulation.mk
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -std=c11 -O1 -fopenmp $(EMU_COMMON) -MF $@.d $(EMU_PLANS_SOURCES) $(EMU_LIBS) -o $@
$(EMU)/absent/libcuda.so.1: tests/emulation/absent_driver.c Makefile
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -std=c11 -O1 -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) -fPIC -shared -Wl,-soname,libcuda.so.1 $< -o $@

$(EMU)/obj/%.o: %.c Makefile tests/emulation/emulation.mk
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(EMU_C_FLAGS) $(if $(filter comm/zero/%,$<),-include tests/emulation/forgetful_wait.h) -c $< -o $@
$(EMU)/obj/%.o: %.cc Makefile tests/emulation/emulation.mk
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(EMU_CXX) $(EMU_RUNTIME_FLAGS) -c $< -o $@
$(EMU)/obj/shadow.o: tests/emulation/emulation_shadow.cc Makefile tests/emulation/emulation.mk
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(EMU_CXX) $(EMU_RUNTIME_FLAGS) -DEMULATION_SHADOW=1 -c $< -o $@
$(EMU)/address/obj/shadow.o: tests/emulation/emulation_shadow.cc Makefile tests/emulation/emulation.mk
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(EMU_CXX) $(EMU_RUNTIME_FLAGS) -c $< -o $@
$(EMU)/obj/%.cu.o: %.cu Makefile tests/emulation/emulation.mk
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(EMU_CXX) $(EMU_CU_FLAGS) $(EMU_SHADOW_FLAGS) -c $< -o $@
$(EMU)/address/obj/%.cu.o: %.cu Makefile tests/emulation/emulation.mk
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(EMU_CXX) $(EMU_CU_FLAGS) $(EMU_SANITIZE) -c $< -o $@

# $(1): the folder of a flavour. The run time comes first: of an inline function, its uninstrumented copy is taken.
define EMU_PROGRAMS
$(1)/ztrain: $(EMU_RUNTIME_OBJECTS) $(1)/obj/shadow.o $(EMU_CMD_OBJECTS) $(EMU_C_OBJECTS) $(EMU_CU:%=$(1)/obj/%.o)
	$$(call say,LINK,$$@)
	$(Q)$(EMU_CXX) $(EMU_LINK_FLAGS) $$^ $(EMU_LIBS) -o $$@
$(1)/ops-test: $(EMU_RUNTIME_OBJECTS) $(1)/obj/shadow.o $(EMU_OPS_OBJECTS) $(EMU_C_OBJECTS) $(EMU_CU:%=$(1)/obj/%.o)
	$$(call say,LINK,$$@)
	$(Q)$(EMU_CXX) $(EMU_LINK_FLAGS) $$^ $(EMU_LIBS) -o $$@
$(1)/faults: $(EMU_RUNTIME_OBJECTS) $(1)/obj/shadow.o $(1)/obj/tests/emulation/faults.cu.o $(EMU)/obj/gpu/arena.o $(EMU)/obj/core/status.o
	$$(call say,LINK,$$@)
	$(Q)$(EMU_CXX) $(EMU_LINK_FLAGS) $$^ $(EMU_LIBS) -o $$@
endef
$(foreach folder,$(EMU) $(EMU)/address,$(eval $(call EMU_PROGRAMS,$(folder))))

$(foreach test,$(CUDA_ONLY_TESTS),$(eval $(EMU)/tests/$(basename $(notdir $(test))): $(EMU)/obj/$(test:.c=.o)))
$(EMU_UNIT_TESTS): $(EMU_RUNTIME_OBJECTS) $(EMU)/obj/shadow.o $(EMU_C_OBJECTS) \
		$(EMU_CU:%=$(EMU)/obj/%.o)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(EMU_CXX) $(EMU_LINK_FLAGS) $^ -lcmocka $(EMU_LIBS) -o $@

-include $(shell find $(EMU) -name '*.d' 2>/dev/null)
