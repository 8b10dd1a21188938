# ztrain: `make` builds build/ztrain; `make help` lists the targets.
#
# SANITIZE=address|thread|undefined   an instrumented build in a folder of its own (thread: without OpenMP)
# WERROR=0                            warnings stay warnings (other compilers than the ones in CI)

CC ?= gcc
SANITIZE ?=
WERROR ?= 1
BUILD ?= build$(if $(SANITIZE),/$(SANITIZE))
PREFIX ?= /usr/local

WARNINGS = -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(filter 1,$(WERROR)),-Werror)
OPTIMIZE ?= -O2
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -I. $(OPTIMIZE) -g -fno-math-errno $(WARNINGS) -MMD -MP $(CFLAGS)
LDLIBS_ALL = -lyaml -ljansson -lzstd -lxxhash -ldl -lpthread -lm $(LDLIBS)

ifeq ($(SANITIZE),address)
CFLAGS_ALL += -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -DZTRAIN_FAULTS=1
LDFLAGS_ALL += -fsanitize=address,undefined
endif
ifeq ($(SANITIZE),thread)
CFLAGS_ALL += -fsanitize=thread -fno-omit-frame-pointer -Wno-unknown-pragmas -DZTRAIN_FAULTS=1
LDFLAGS_ALL += -fsanitize=thread
else
CFLAGS_ALL += -fopenmp
LDFLAGS_ALL += -fopenmp
endif

# The CPU's ops are compiled once for each instruction-set level and chosen by CPUID at run time. Products may be
# contracted to fused multiply-adds.
OPS_CPU_FLAGS = -O3 -ffp-contract=fast -Wno-psabi
CFLAGS_gpu_ops_cpu_isa_baseline = $(OPS_CPU_FLAGS)
CFLAGS_gpu_ops_cpu_isa_avx2 = $(OPS_CPU_FLAGS)
CFLAGS_gpu_ops_cpu_isa_avx512 = $(OPS_CPU_FLAGS)
ifneq ($(filter x86_64-% amd64-%,$(shell $(CC) -dumpmachine)),)
CFLAGS_gpu_ops_cpu_isa_avx2 += -march=x86-64-v3
CFLAGS_gpu_ops_cpu_isa_avx512 += -march=x86-64-v4 -mprefer-vector-width=512
endif

FLOORS = core gpu comm ckpt
LIB_SOURCES = $(foreach floor,$(FLOORS),$(wildcard $(floor)/*.c))
CMD_SOURCES = $(wildcard cmd/*.c)
LIB_OBJECTS = $(LIB_SOURCES:%.c=$(BUILD)/obj/%.o)
CMD_OBJECTS = $(CMD_SOURCES:%.c=$(BUILD)/obj/%.o)
UNIT_TESTS = $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c))

.PHONY: all help clean unit-tests
all: $(BUILD)/ztrain

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CFLAGS_$(subst /,_,$*)) -c $< -o $@

$(BUILD)/libztrain.a: $(LIB_OBJECTS)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/ztrain: $(CMD_OBJECTS) $(BUILD)/libztrain.a
	$(CC) $(LDFLAGS_ALL) $(LDFLAGS) $^ $(LDLIBS_ALL) -o $@

$(BUILD)/tests/%: tests/unit/%.c $(BUILD)/libztrain.a Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MF $(BUILD)/tests/$*.d $< $(BUILD)/libztrain.a $(LDFLAGS_ALL) $(LDFLAGS) -lcmocka $(LDLIBS_ALL) -o $@

unit-tests: $(UNIT_TESTS)
	@set -e; for t in $(UNIT_TESTS); do echo "== $$t"; $$t; done

clean:
	rm -rf build

-include $(LIB_OBJECTS:.o=.d) $(CMD_OBJECTS:.o=.d) $(wildcard $(BUILD)/tests/*.d)

# Compiles everything without linking.
.PHONY: all-objects
all-objects: $(LIB_OBJECTS) $(CMD_OBJECTS)
