# SPDX-License-Identifier: Apache-2.0
"""Several ranks on emulated GPUs: which rank gets which, NCCL between them, and its failures.

Every run is also a search for mistakes: a missing event, a race or a bad index ends it (tests/emulation/emulation.h).
"""
import glob
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import harness
from harness import BROKEN, DEVICE, LLAMA, PEER, ROOT, SLOWNESS, USAGE, Job, wait_for_steps

HOST = socket.gethostname()
TWO = {"ZTRAIN_EMULATION_GPUS": "2"}
SHARED = {"ZTRAIN_EMULATION_GPUS": "1", "ZTRAIN_SHARE_GPUS": "1"}
ENDLESS = {"train": {"max_steps": 1000000}}
TIMEOUT = 5


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setattr(harness, "OPTIONS_OF_RUNS", ["--verbose"])
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))


def spec_of(folder, changes=None, name="run", device="cuda", steps=2):
    """A step has two micro-batches of two samples on each of two ranks."""
    base = {"data": {"validation": None}, "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 2, "comm": {"timeout_seconds": TIMEOUT},
            "train": {"epochs": None, "max_steps": steps, "device": device}}
    return folder.spec(harness.merged(base, changes or {}), name)


def train(folder, changes=None, name="run", ranks=2, env=None, more=(), **arguments):
    return folder.ztrain("--config", spec_of(folder, changes, name), "--local-gpus", ranks, *more, env=env or TWO,
                         **arguments)


def rank_log(folder, rank, name="run"):
    with open(os.path.join(folder.run_folder(name), "log", f"rank-{rank:05}.log"), encoding="utf-8") as f:
        return f.read()


def said_by(done, words):
    """The ranks that printed it on stderr."""
    return [rank for rank, d in enumerate(done) if words in d.err]


# --- which rank gets which GPU ----------------------------------------------------------------------------------------

def test_more_ranks_than_gpus(folder):
    words = f"rank 1 on {HOST} has no GPU of its own: 2 ranks there see 1 GPU"
    for device in ("cuda", "auto"):
        done = folder.ztrain("--config", spec_of(folder, device=device), "--local-gpus", 2, expect=USAGE)
        assert done.err.count(words) == 1 and "hint: --local-gpus 1" in done.err and "ZTRAIN_SHARE_GPUS=1" in done.err
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0]).train(USAGE)
    assert said_by(done, words) == [0]
    assert "srun --mpi=pmi2 --ntasks-per-node=1 --gpus-per-node=1 ztrain" in done[0].err
    # two GPUs, of which both ranks see the same one
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0], env={**TWO, "CUDA_VISIBLE_DEVICES": "1"}).train(USAGE)
    assert said_by(done, words) == [0]
    # two node names, but one machine
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 1]).train(DEVICE)
    assert said_by(done, "ranks 0 and 1 have the same GPU, emulated GPU") == [0]
    done = train(folder, env={"ZTRAIN_SHARE_GPUS": "yes"}, expect=USAGE)
    assert done.err.count("ZTRAIN_SHARE_GPUS is 'yes'") == 1


def test_a_gpu_that_is_too_old(folder):
    old = {**TWO, "ZTRAIN_EMULATION_MAJOR": "7"}
    done = train(folder, env=old, expect=DEVICE)
    assert done.err.count("has compute capability 7.0, ztrain needs 8.0 or higher") == 1, done
    assert "hint: choose another GPU with CUDA_VISIBLE_DEVICES, or set train.device to cpu" in done.err
    done = folder.ztrain("--config", spec_of(folder, device="auto"), "--local-gpus", 2, env=old)
    assert re.search(r"device: the CPU \(rank 0 .*compute capability 7\.0", done.out), done


@pytest.mark.parametrize("version, words", [("11080", "the NVIDIA driver supports CUDA up to 11.8, this build needs CUDA"),
                                            ("0", "no NVIDIA driver (libcuda.so.1) on this machine")])
def test_a_driver_that_is_too_old_or_missing(folder, version, words):
    environment = {"ZTRAIN_EMULATION_DRIVER": version}
    done = train(folder, ranks=1, env=environment, expect=DEVICE)
    assert words in done.final_error and "hint: " in done.final_error
    done = folder.ztrain("--config", spec_of(folder, device="auto"), "--local-gpus", 1, env=environment)
    assert words in done.out + done.err and "device: the CPU" in done.out + done.err


def test_what_ranks_see_decides(folder):
    """Rank 0 sees both GPUs, rank 1 only the first: rank 0 takes the second."""
    done = Job(folder, "--config", spec_of(folder, steps=1), nodes=[0, 0],
               env_of={0: TWO, 1: {**TWO, "CUDA_VISIBLE_DEVICES": "0"}}).train()
    assert "collectives: NCCL 2." in done[0].out and "GPU 1 of 2" in done[0].out
    assert "GPU 1 of the 2 that this rank sees" in rank_log(folder, 0)
    assert "GPU 0 of the 1 that this rank sees" in rank_log(folder, 1)


def test_a_rank_without_a_gpu(folder):
    blind = {1: {"CUDA_VISIBLE_DEVICES": ""}}
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 1], env_of=blind).train(DEVICE)
    assert said_by(done, f"train.device cuda: rank 1 on {HOST}: the NVIDIA driver shows no GPU") == [0]
    assert "srun --gpus-per-node=N" in done[0].err
    done = Job(folder, "--config", spec_of(folder, device="auto"), nodes=[0, 1], env_of=blind).train()
    assert said_by(done, f"device: all ranks use the CPU, though 1 of 2 have a GPU (rank 1 on {HOST}: ") == [0]
    assert "device: emulated GPU" not in done[0].out
    none = {"ZTRAIN_EMULATION_GPUS": "0"}
    done = folder.ztrain("--config", spec_of(folder, device="auto", name="none", steps=1), env=none)
    assert "device: the CPU (the NVIDIA driver shows no GPU)" in done.out
    done = folder.ztrain("--config", spec_of(folder, name="nothing"), env=none, expect=DEVICE)
    assert "train.device cuda: the NVIDIA driver shows no GPU; hint: set train.device to cpu or auto" in done.err


# --- training ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_golden(stage):
    """The golden cases over NCCL; the results of ranks that share a GPU are compared with them below."""
    command = ["tests/golden/check_golden.py", "--ztrain", harness.ZTRAIN, "--case", "gpt2", "--set",
               "train.device=cuda", "--set", "train_micro_batch_size_per_gpu=3", "--stage", stage, "--ranks", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, env={**os.environ, **TWO})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("stage, optimizer", [(1, "AdamW"), (3, "AdamW"), (2, "Muon")])
def test_every_way_gives_the_same_bits(folder, stage, optimizer):
    """The ways lead through host memory and over NCCL, with and without overlap, in one piece and in many."""
    section = {"type": optimizer, "params": {"lr": 3e-3}}
    zero = {"zero_optimization": {"stage": stage}, "optimizer": section}
    done = train(folder, zero, "shared", env=SHARED)
    assert f"2 ranks on {HOST} share 1 GPU (ZTRAIN_SHARE_GPUS=1)" in done.err
    assert "collectives: through host memory: ranks share a GPU" in done.out
    done = train(folder, zero, "nccl")
    assert "collectives: NCCL 2." in done.out and "share" not in done.err
    counted = re.search(r"gathered (\d+) bytes \(theory (\d+)\), reduced (\d+) bytes \(theory (\d+)\)", done.out)
    assert counted[1] == counted[2] and counted[3] == counted[4]
    train(folder, {"zero_optimization": {"stage": stage, "overlap_comm": False, "reduce_bucket_size": 1000,
                                         "allgather_bucket_size": 1000}, "optimizer": section}, "serial",
          env={**TWO, "ZTRAIN_EMULATION_ORDER": "starve"})
    numbers = [folder.metrics(name).numbers() for name in ("shared", "nccl", "serial")]
    assert numbers[0] == numbers[1] == numbers[2]


def test_half_precision_and_resume_on_three(folder):
    changes = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "checkpoint": {"interval_steps": 1},
               "train_batch_size": 6, "train_micro_batch_size_per_gpu": 1}
    three = {"ZTRAIN_EMULATION_GPUS": "3"}
    orders = [{**three, "ZTRAIN_EMULATION_ORDER": order} for order in ("random", "starve", "eager")]
    train(folder, changes, "whole", ranks=3, env=orders[0])
    train(folder, changes, "cut", ranks=3, env=orders[1], more=["--set", "train.max_steps=1"])
    train(folder, changes, "cut", ranks=3, env=orders[2], more=["--resume", folder.run_folder("cut")])
    assert folder.metrics("cut").numbers() == folder.metrics("whole").numbers()


@pytest.mark.parametrize("call", ["cudaGetDeviceCount", "cudaSetDevice", "cudaFuncGetAttributes", "cudnnCreate",
                                  "libnccl.so.2"])
def test_a_slow_start_is_not_silence(folder, call):
    """The other rank waits: the driver, a context and libraries may take longer than comm.timeout_seconds."""
    changes = {"comm": {"timeout_seconds": 1.5}, "bf16": {"enabled": True}}
    Job(folder, "--config", spec_of(folder, changes, steps=1), nodes=[0, 0], env=TWO,
        env_of={1: {"ZTRAIN_EMULATION_SLOW": call}}).train()


def test_ranks_run_on_the_cores_of_their_gpus(folder):
    """As far as the affinity mask of the job allows."""
    cores = sorted(os.sched_getaffinity(0))
    first, last = cores[0], cores[-1]
    for gpu, near in enumerate((f"{last},4000", f"{first}")):
        place = folder.at(os.path.join("sys", "bus", "pci", "devices", f"0000:{gpu:02}:00.0"))
        os.makedirs(place)
        with open(os.path.join(place, "local_cpulist"), "w", encoding="utf-8") as f:
            f.write(near + "\n")
    env = {**TWO, "ZTRAIN_SYSTEM_ROOT": folder.at(".")}
    train(folder, {"train": {"max_steps": 1}}, env=env)
    for rank in range(2):
        assert f"cores: 1 near GPU 0000:0{rank}:00.0, 1 threads" in rank_log(folder, rank)
    try:
        os.sched_setaffinity(0, {first})
        train(folder, {"train": {"max_steps": 1}}, name="masked", env=env)
    finally:
        os.sched_setaffinity(0, cores)
    far = "cores: none of the 1 that this rank may use is near its GPU 0000:00:00.0"
    assert (far in rank_log(folder, 0, "masked")) == (first != last)
    assert "cores: 1 near GPU 0000:01:00.0" in rank_log(folder, 1, "masked")


def test_kernels_that_the_driver_compiles(folder):
    """Said before the kernels of each .cu file are loaded; a slow load is above."""
    loaded = set()
    for path in glob.glob(os.path.join(ROOT, "gpu", "cuda", "*", "*.cu")):
        with open(path, encoding="utf-8") as f:
            loaded |= set(re.findall(r"^CUDA_MODULE\((\w+),", f.read(), re.M)) or {path}
    with open(os.path.join(ROOT, "gpu", "cuda", "ops", "ops_cuda.c"), encoding="utf-8") as f:
        assert set(re.findall(r"\bX\((\w+)\)", f.read())) == loaded
    done = folder.ztrain("doctor", "--gpu-test", env={"ZTRAIN_EMULATION_MAJOR": "13"})
    assert "this build has no code for compute capability 13.0: the driver compiles the kernels" in done.out + done.err


def test_a_slow_call_is_never_silence(folder):
    """Any call may load code, compile, or wait for a lock of the driver, at any use. (The emulation ends a process whose call
    is not one that keeps its rank alive, in all tests; here time shows it.)"""
    slow = [["cudaMalloc@2", "cublasLtMatmul@90", "ncclAllGather@9"],
            ["a kernel launch@200", "cudaGraphInstantiate@1", "cudaHostRegister@2"]]
    changes = {"comm": {"timeout_seconds": 1.5}, "bf16": {"enabled": True}, "checkpoint": {"interval_steps": 3},
               "train": {"cuda_graphs": True}}
    done = Job(folder, "--config", spec_of(folder, changes, steps=4), nodes=[0, 0], env=TWO,
               env_of={rank: {"ZTRAIN_EMULATION_SLOW": ",".join(slow[rank])} for rank in (0, 1)}).train()
    for rank, d in enumerate(done):
        for call in slow[rank]:
            assert f"emulation: slow: {call.split('@')[0]}\n" in d.err, (call, d)
    assert ", training waited for " in done[0].out, done[0]


# --- what goes wrong --------------------------------------------------------------------------------------------------

def test_no_nccl(folder):
    done = train(folder, env={**TWO, "ZTRAIN_EMULATION_WITHOUT": "libnccl.so.2"}, expect=DEVICE)
    assert done.err.count("cannot open NCCL libnccl.so.2: ") == 1 and "; hint: install NCCL 2." in done.err
    done = train(folder, env={**TWO, "ZTRAIN_EMULATION_LACKS": "ncclCommFinalize"}, expect=DEVICE)
    assert "NCCL libnccl.so.2 lacks the function ncclCommFinalize: it is older than ztrain needs" in done.err
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0], env=TWO,
               env_of={1: {"ZTRAIN_EMULATION_WITHOUT": "libnccl.so.2"}}).train(DEVICE)
    assert said_by(done, f"rank 1 on {HOST} cannot use NCCL") == [0] and "cannot open NCCL" in done[1].err
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0], env=TWO,
               env_of={1: {"ZTRAIN_EMULATION_NCCL": "version=22304"}}).train(DEVICE)
    assert said_by(done, f"rank 1 on {HOST} has version 22304 of NCCL, rank 0 on {HOST} has 2") == [0]


def test_a_communicator_that_does_not_come_about(folder):
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0], env=TWO,
               env_of={1: {"ZTRAIN_EMULATION_NCCL": "refuse"}}).train(PEER)
    assert "NCCL: cannot join the communicator: " in done[1].err and "no network; hint: NCCL_DEBUG=INFO" in done[1].err
    assert "cannot join the communicator" in done[0].err
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0], env=TWO,
               env_of={1: {"ZTRAIN_EMULATION_NCCL": "small"}}).train(PEER)
    assert "No space left on device (28); hint: /dev/shm is too small, or the ranks have different ones: in a container " \
        "--shm-size=1g or --ipc=host helps, --cap-add SYS_NICE lets NCCL do without; NCCL_DEBUG=INFO in" in done[1].err, done[1]
    changes = {"comm": {"timeout_seconds": 1.5}}
    done = Job(folder, "--config", spec_of(folder, changes), nodes=[0, 0], env=TWO,
               env_of={1: {"ZTRAIN_EMULATION_NCCL": "deaf"}}).train(PEER)
    assert all("no progress for 9.5 s, although all ranks are alive" in d.err for d in done)


def test_wrong_sums_end_the_run_before_it_begins(folder):
    done = train(folder, env={**TWO, "ZTRAIN_EMULATION_NCCL": "forgets"}, expect=DEVICE)
    assert "a reduce-scatter of 2 ranks in fp32 gave 0 in element " in done.err and "nccl-tests" in done.err
    assert not folder.checkpoints()


# of 4 virtual ranks
VIRTUAL = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "train": {"virtual_ranks": 4}}


# test_virtual_ranks.py has the other stages
@pytest.mark.parametrize("stage, more", [(1, {"train": {"cuda_graphs": True}}), (3, {"bf16": {"enabled": True}})])
def test_virtual_ranks_have_the_same_bits_on_any_number_of_gpus(folder, stage, more):
    """On one GPU, over NCCL on two and four, and on two ranks that share a GPU."""
    changes = harness.merged(harness.merged(VIRTUAL, {"zero_optimization": {"stage": stage}}), more)
    for name, ranks, env in (("one", 1, TWO), ("two", 2, TWO), ("four", 4, {"ZTRAIN_EMULATION_GPUS": "4"}),
                             ("shared", 2, SHARED)):
        own = changes
        if name == "shared":
            own = harness.merged(changes, {"train": {"cuda_graphs": False}})
        done = train(folder, own, name, ranks=ranks, env={**env, "ZTRAIN_EMULATION_STATS": "1"})
        sent = re.findall(r"of \d+, (\d+) bytes sent to peers", done.err)
        assert all(int(x) > 1 << 16 for x in sent) and len(sent) == (ranks if name in ("two", "four") else 0), done
        assert folder.metrics(name).numbers() == folder.metrics("one").numbers(), name


def test_a_wrong_order_of_sums_ends_the_run_before_it_begins(folder):
    """Without virtual ranks no order is promised."""
    env = {**TWO, "ZTRAIN_SUM_ORDER": "reverse"}
    done = train(folder, VIRTUAL, env=env, expect=DEVICE)
    assert "an ordered reduce-scatter of 2 ranks in fp32 gave " in done.err and not folder.checkpoints(), done
    done = train(folder, VIRTUAL, env={**SHARED, "ZTRAIN_SUM_ORDER": "reverse"}, expect=DEVICE)
    assert "an ordered reduce-scatter of 2 ranks in fp32 gave " in done.err, done
    train(folder, name="other", env=env)


def test_an_asynchronous_error_ends_all(folder):
    """The ranks are on two nodes with one GPU each."""
    done = Job(folder, "--config", spec_of(folder, ENDLESS), nodes=[0, 1], env=TWO,
               env_of={0: {"CUDA_VISIBLE_DEVICES": "1"},
                       1: {"CUDA_VISIBLE_DEVICES": "0", "ZTRAIN_EMULATION_NCCL": "error=60"}}).train(PEER)
    assert "NCCL: a" in done[1].err and "the network has gone away" in done[1].err
    assert "rank 1 on" in done[0].err and all(d.seconds < 120 * SLOWNESS for d in done)


def test_a_device_that_fails_after_the_start(folder):
    """All ranks end with 8, not with 5, after which a batch system does not restart the job; the final error name rank and
    host. A call that fails for lack of memory does not make the device a broken one."""
    plain = {"train": {**ENDLESS["train"], "cuda_graphs": False}}
    job = Job(folder, "--config", spec_of(folder, plain), nodes=[0, 1], env=TWO,
              env_of={0: {"CUDA_VISIBLE_DEVICES": "1"},
                      1: {"CUDA_VISIBLE_DEVICES": "0", "ZTRAIN_EMULATION_FAILS": "214@300"}})
    done = job.train(BROKEN)
    words = f"ztrain: error: rank 1 on {HOST}: GPU 0 (emulated GPU): "
    assert words in done[1].err and "uncorrectable ECC error encountered (cudaErrorECCUncorrectable)" in done[1].err
    assert f"rank 1 on {HOST} ended: GPU 0" in done[0].err
    assert words in rank_log(folder, 1)
    alone = spec_of(folder, plain, "alone")
    done = folder.ztrain("--config", alone, env={"ZTRAIN_EMULATION_FAILS": "214@300"}, expect=BROKEN)
    assert f"ztrain: error: rank 0 on {HOST}: GPU 0 (emulated GPU): " in done.err
    memory = {"ZTRAIN_EMULATION_FAILS": "2@300"}
    folder.ztrain("--config", spec_of(folder, plain, "memory"), env=memory, expect=DEVICE)


def test_an_asynchronous_error_of_the_device_ends_all(folder):
    done = train(folder, ENDLESS, expect=BROKEN, env={**TWO, "ZTRAIN_EMULATION_NCCL": "cuda=60"})
    assert "uncorrectable ECC error" in done.err


@pytest.mark.parametrize("call", [19, 28])
def test_a_collective_that_is_not_taken_ends_all(folder, call):
    """28 is the last collective of the run: none of its results may become a checkpoint."""
    done = train(folder, {"zero_optimization": {"stage": 1}, "train": {"max_steps": 1}}, expect=PEER,
                 env={**TWO, "ZTRAIN_EMULATION_NCCL": f"reject={call}"})
    assert "NCCL: a" in done.err and "it does not like this one" in done.err and not folder.checkpoints()


def test_a_rank_that_ends_alone_takes_the_others_with_it(folder):
    """Without the memory of the collectives' check, which no rank begins then; and without that of the plan."""
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0], env=TWO,
               env_of={1: {"ZTRAIN_EMULATION_MEMORY": "1"}}).train(DEVICE)
    assert f"rank 1 on {HOST}: cannot allocate" in done[1].err
    done = Job(folder, "--config", spec_of(folder), nodes=[0, 0], env=TWO,
               env_of={1: {"ZTRAIN_EMULATION_MEMORY": "20", "ZTRAIN_EMULATION_NVML": "others=2"}}).train(DEVICE)
    assert re.search(r"the plan takes [\d.]+ MiB \(\d+ bytes\) of device memory, but only [\d.]+ MiB of the 4.0 GiB of emulated GPU "
                     r"are free; on it are processes 4711 \(python3, 3.0 GiB\), 4712 \(unknown\); hint: ", done[1].err), done[1]
    assert "error" not in done[0].err  # one message for all


def mebibytes(done, words):
    """The size after these words, or in brackets after them."""
    number, unit = re.search(words + r"[^(]*?\(?([\d.]+) ([KM])iB", done.err).groups()
    return float(number) / (1 if unit == "M" else 1024)


def test_a_gpu_with_too_little_memory(folder):
    """What would fit is named, and counted as what is free is; ranks that share a GPU count together."""
    large = {"train_batch_size": 40, "train_micro_batch_size_per_gpu": 40}
    done = train(folder, large, ranks=1, env={"ZTRAIN_EMULATION_MEMORY": "20"}, expect=DEVICE)
    assert "cannot allocate" not in done.err and "on it are processes" not in done.err
    need = int(re.search(r"the plan takes [\d.]+ MiB \((\d+) bytes\)", done.err)[1]) // 2**20
    done = train(folder, large, ranks=1, env={"ZTRAIN_EMULATION_MEMORY": str(need - 1)}, expect=DEVICE)
    assert "; hint: it fits with train_micro_batch_size_per_gpu=" in done.err and "`ztrain plan --fit` finds" in done.err, done
    assert mebibytes(done, "it fits with [^(]*") <= mebibytes(done, "but only "), done
    done = train(folder, env={**SHARED, "ZTRAIN_EMULATION_MEMORY": str(need)}, expect=DEVICE)
    assert "the plans of 2 ranks take " in done.err, done
    assert mebibytes(done, "it fits with [^(]*|the least is [^(]*") < mebibytes(done, "the plans of 2 ranks take "), done


def test_a_plan_that_leaves_too_little(folder):
    """The warning names a limit that gives the settings which leave enough, unless others take too much."""
    large = {"train_batch_size": 40, "train_micro_batch_size_per_gpu": 40, "train": {"max_steps": 1}}
    done = train(folder, large, "tight", ranks=1, env={"ZTRAIN_EMULATION_MEMORY": "195"})
    limit, = re.findall(r"the plan leaves [\d.]+ MiB .* hint: train.memory_limit=(\d+MiB) names settings", done.err)
    done = train(folder, large, "limited", ranks=1, expect=DEVICE, more=["--set", f"train.memory_limit={limit}"])
    assert "more than train.memory_limit" in done.err and "hint: it fits with " in done.err
    done = train(folder, large, "other", ranks=1, env={"ZTRAIN_EMULATION_MEMORY": "120"})
    assert "the plan leaves " in done.err and "hint: free memory on the GPU" in done.err


def test_a_plan_that_no_such_gpu_holds_is_refused_before_anything_is_measured(folder, tmp_path):
    cache = tmp_path / "cache"
    large = {"model": {"config": {**LLAMA, "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 200064}}}
    env = {"ZTRAIN_GEMM_CACHE": str(cache), "ZTRAIN_GPU_TEST": "always"}
    done = train(folder, large, ranks=1, env=env, expect=DEVICE)
    assert re.search(r"the plan needs [\d.]+ GiB \(\d+ bytes, [\d.]+ MiB of it reserve\) of device memory on each rank, more than the "
                     r"GPU's 4.0 GiB; hint: ", done.err), done
    assert "self-test" not in done.out + done.err and not cache.exists(), done


@pytest.mark.parametrize("how, words, graphs", [(signal.SIGKILL, "died", False), (signal.SIGKILL, "died", True),
                                                (signal.SIGSTOP, "has been silent for", False)])
def test_a_rank_lost_in_a_step(folder, how, words, graphs):
    """Without a supervisor, the other rank itself has to notice the death, while it waits for its GPU."""
    changes = harness.merged(ENDLESS, {"zero_optimization": {"stage": 3}, "train": {"cuda_graphs": graphs}})
    job = Job(folder, "--config", spec_of(folder, changes), nodes=[0, 0], env=TWO)
    wait_for_steps(folder, job.ranks[0], 4)
    os.kill(job.ranks[1].pid, how)
    started = time.monotonic()
    done = folder.wait(job.ranks[0], 30)
    assert time.monotonic() - started < (TIMEOUT + 30) * SLOWNESS, done
    assert done.code == PEER and re.search(rf"rank 1 on {HOST} \(process \d+\) {words}", done.final_error), done


def test_a_rank_lost_under_a_supervisor(folder):
    run = folder.start("--config", spec_of(folder, ENDLESS), "--local-gpus", 2, env=TWO)
    wait_for_steps(folder, run, 2)
    os.kill(harness.children(run.pid)[1], signal.SIGKILL)
    done = folder.wait(run, 10)
    assert done.code == PEER and "rank 1" in done.err and "killed by signal 9" in done.err, done
    assert harness.session_members(run.pid) == []


# --- which kernels a resumed run computes with ------------------------------------------------------------------------

TAKEN, MEASURED = "kernels: those that the run has computed with, from ", "measured "
KERNELS = "kernels-emulated-GPU.txt"


def saving_spec(folder, name, steps):
    return folder.spec({"data": {"validation": None}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
                        "checkpoint": {"interval_steps": 2, "keep_last": 0},
                        "train": {"epochs": None, "max_steps": steps, "device": "cuda"}}, name)


def train_apart(folder, caches, name="run", steps=4, resume=None, env=None):
    """Two ranks, each with its folder of choices, as on two machines. Returns rank 0's output."""
    arguments = ["--config", saving_spec(folder, name, steps), *(["--resume", resume] if resume else [])]
    env_of = {rank: {"ZTRAIN_GEMM_CACHE": folder.at(cache)} for rank, cache in enumerate(caches)}
    done = Job(folder, *arguments, nodes=[0, 0], env={**TWO, **(env or {})}, env_of=env_of).train()
    assert MEASURED not in rank_log(folder, 1, name)
    return done[0].out + done[0].err


def kept_kernels(folder, name="run"):
    """The head and the choices of the file, the latter in no order."""
    with open(os.path.join(folder.run_folder(name), KERNELS), encoding="utf-8") as f:
        all_lines = f.read().splitlines()
    return all_lines[:3], set(all_lines[3:])


def test_a_resume_on_another_machine_continues_bit_for_bit(folder):
    """Twice: what was taken is kept for the next resume, and the other ranks get it."""
    said = train_apart(folder, ["c0", "c1"], "whole", steps=6)
    assert MEASURED in said and TAKEN not in said
    train_apart(folder, ["c0", "c1"], steps=2)
    kept = kept_kernels(folder)
    assert kept == kept_kernels(folder, "whole") and len(kept[1]) > 5
    for steps, caches in ((4, ["c1", "c0"]), (6, ["c2", "c3"])):
        said = train_apart(folder, caches, steps=steps, resume=folder.run_folder())
        assert TAKEN + f"'{folder.run_folder()}/{KERNELS}'" in said and MEASURED not in said, said
        assert kept_kernels(folder) == kept
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


def test_a_branch_takes_the_kernels_of_the_run_that_it_leaves(folder):
    train_apart(folder, ["c0", "c1"], steps=2)
    os.rename(os.path.join(folder.run_folder(), "checkpoints"), folder.at("elsewhere"))
    os.symlink(folder.at("elsewhere"), os.path.join(folder.run_folder(), "checkpoints"))
    checkpoint = os.path.join(folder.run_folder(), "checkpoints", folder.checkpoints()[0])
    said = train_apart(folder, ["c1", "c0"], "branch", resume=checkpoint)
    assert TAKEN in said and MEASURED not in said and kept_kernels(folder, "branch") == kept_kernels(folder)


def test_when_kernels_are_chosen_anew(folder):
    """On demand; where the text is of another library; where the folder has none. Then the run keeps the new ones."""
    train_apart(folder, ["c0", "c1"], steps=2)
    path = os.path.join(folder.run_folder(), KERNELS)
    said = train_apart(folder, ["c1", "c0"], resume=folder.run_folder(), env={"ZTRAIN_GEMM_MEASURE": "again"})
    assert TAKEN not in said and MEASURED in said
    with open(path, encoding="utf-8") as f:
        text = f.read()
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace("\ncublaslt ", "\ncublaslt 1", 1))
    said = train_apart(folder, ["c2", "c0"], steps=6, resume=folder.run_folder())
    assert f"the kernels in '{path}' are of another GPU or library: they are chosen anew" in said and MEASURED in said
    assert kept_kernels(folder)[0] == text.splitlines()[:3]
    os.remove(path)
    said = train_apart(folder, ["c3", "c0"], steps=8, resume=folder.run_folder())
    assert TAKEN not in said and MEASURED in said and os.path.exists(path)


def test_a_resume_and_other_ranks_try_no_engine_that_rank_0_has_refused(folder):
    """The engine that ztrain lists for the GPU repeats its bits on rank 1 and on the resume's machine."""
    restless, good = {"ZTRAIN_EMULATION_NAMED": "restless"}, {}
    for caches, steps, faults in ((("c0", "c1"), 2, restless), (("c2", "c3"), 4, good)):
        arguments = ["--config", saving_spec(folder, "run", steps), "--set", "bf16.enabled=true"]
        if steps > 2:
            arguments += ["--resume", folder.run_folder()]
        env_of = {rank: {"ZTRAIN_GEMM_CACHE": folder.at(cache)} for rank, cache in enumerate(caches)}
        env_of[0].update(faults)
        done = Job(folder, *arguments, nodes=[0, 0], env={**TWO, "ZTRAIN_EMULATION_CUDNN": "medium",
                   "ZTRAIN_EMULATION_CUDNN_VERSION": "92600"}, env_of=env_of).train()
        assert ("dq does not repeat bit for bit; cuDNN's own choice is tried" in done[0].err) == bool(faults), done[0]
        for rank in 0, 1:
            assert re.search(r"attention backward, bf16, .*: cuDNN .*, engine 3", rank_log(folder, rank)), rank_log(folder, rank)
        assert "cuDNN's own choice is tried" not in rank_log(folder, 1)


def test_a_damaged_text_and_one_that_cannot_be_written(folder):
    """Each damaged choice is made again; a folder in the file's place is a warning. What a killed process left is deleted."""
    train_apart(folder, ["c0", "c1"], steps=2)
    path = os.path.join(folder.run_folder(), KERNELS)
    head, kept = kept_kernels(folder)
    with open(path, "rb+") as f:
        f.truncate(os.path.getsize(path) - 9)
    with open(path + ".tmp-1234", "w", encoding="utf-8"):
        pass
    said = train_apart(folder, ["c1", "c0"], resume=folder.run_folder())
    assert TAKEN in said and MEASURED + "1 " in said
    now = kept_kernels(folder)
    assert now[0] == head and len(now[1] & kept) == len(kept) - 1 and not os.path.exists(path + ".tmp-1234")
    os.remove(path)
    os.mkdir(path)
    said = train_apart(folder, ["c0", "c1"], steps=6, resume=folder.run_folder())
    assert "ztrain: warning: " in said and "a resumed run may compute with other kernels" in said, said
