#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of ztrain on this machine: GPT-2 124M, B=4, T=64 and 256, fp32 and bf16. Standard library only.

    scripts/bench.py                              tokens/s, time by operation, share of the GEMM ceiling, peak memory
    scripts/bench.py --case bf16-256              one case
    scripts/bench.py --peers PYTHON               against PyTorch, alternating in one run, with ratios; PYTHON belongs to an
                                                  environment with torch and transformers (scripts/bench-peers.sh)
    scripts/bench.py --peers PYTHON --deepspeed   two ranks at ZeRO-3 in bf16 against DeepSpeed
    scripts/bench.py --peers PYTHON --lora        LoRA of rank 16 on every matrix of the blocks, against PEFT
    scripts/bench.py --peers PYTHON --experts grouped_mm
                                                  a small mixture of experts (EXPERTS) instead of GPT-2, with that implementation
                                                  of transformers' (eager, grouped_mm, batched_mm)

$ZTRAIN_BENCH_PRELOAD lists libraries that are preloaded into peers, as in LD_PRELOAD.

Both programs are started once and take short turns: ztrain is stopped (SIGSTOP) while the peer computes, and the peer waits
for its next request, so both see the same minutes of the machine. A ratio compares the medians of a turn, and the median over
turns is printed; absolute figures of different machines, or of different hours, cannot be compared.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CASES = [(dtype, length) for dtype in ("fp32", "bf16") for length in (64, 256)]
BATCH = 4
VOCABULARY = 50257
WARM_UP = 3     # steps of a run that are not counted
STEPS = 10      # counted steps, of ztrain alone
TURN_STEPS = 3  # counted steps in a turn with a peer
LORA_RANK = 16
LORA = [f"peft={{peft_type: LORA, r: {LORA_RANK}, lora_alpha: {2 * LORA_RANK}, target_modules: all-linear}}"]
EXPERTS = {"model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
           "head_dim": 64, "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "intermediate_size": 1024,
           "vocab_size": 8192, "max_position_embeddings": 1024, "norm_topk_prob": True, "tie_word_embeddings": False}


# --- what is trained --------------------------------------------------------------------------------------------------

def write_tokens(prefix, count, experts):
    """A Megatron shard of one document with `count` tokens, frequent ones first, as in text; all alike for experts, which then
    have about equal loads."""
    rng = random.Random(1)
    tokens = [rng.randrange(EXPERTS["vocab_size"]) if experts else min(int(rng.paretovariate(0.6)), VOCABULARY) - 1
              for _ in range(count)]
    with open(prefix + ".bin", "wb") as f:
        f.write(struct.pack(f"<{count}H", *tokens))
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iq2q", count, 0, 0, 1))


def command(ztrain, top, name, dtype, length, ranks, steps, stage, more=()):
    """The command line of one run and its folder."""
    settings = {
        "run.dir": top, "run.name": name, "data.train": f"{top}/tokens", "data.seq_length": length,
        "train.max_steps": steps, "train_batch_size": BATCH, "gradient_clipping": 1.0,
        "zero_optimization.stage": stage, "bf16.enabled": str(dtype == "bf16").lower(), "train.device": "cpu",
        "checkpoint.compression_level": 0, "optimizer.type": "AdamW", "optimizer.params.lr": 1e-5,
    }
    spec = f"{top}/bench.yaml"
    if not os.path.exists(spec):
        with open(spec, "w", encoding="utf-8") as f:
            f.write(f"model:\n  config: {ROOT}/configs/models/gpt2-124m.json\nsteps_per_print: 1000\n")
    line = [ztrain, "--config", spec, *more]
    for key, value in settings.items():
        line += ["--set", f"{key}={value}"]
    return line + (["--local-gpus", str(ranks)] if ranks > 1 else []), f"{top}/{name}"


# --- one turn of ztrain -----------------------------------------------------------------------------------------------

def resident(session):
    """Peak resident bytes of each process of a session."""
    peaks = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as f:
                fields = f.read().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            with open(f"/proc/{entry}/status", encoding="ascii", errors="replace") as f:
                peaks += [int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM")]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return peaks


class Ours:
    """ztrain, started once and stopped (SIGSTOP) between its turns."""

    def __init__(self, ztrain, top, dtype, length, ranks=1, stage=0, name="ztrain", settings=()):
        more = ["--set", "comm.timeout_seconds=3600"] if ranks > 1 else []     # its ranks do not notice the pauses
        line, self.folder = command(ztrain, top, name, dtype, length, ranks, 1000000, stage, more)
        for setting in settings:
            line += ["--set", setting]
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log = f"{top}/{name}.log"
        self.tokens = BATCH * length
        started = time.monotonic()
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
        self.wait(1, 0.002)
        self.first = time.monotonic() - started     # from exec to the first step's end
        self.wait(WARM_UP)
        os.killpg(self.process.pid, signal.SIGSTOP)

    def lines(self):
        try:
            with open(f"{self.folder}/metrics.jsonl", "rb") as f:
                return f.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []

    def wait(self, count, pause=0.05):
        while len(self.lines()) < count:
            if self.process.poll() is not None:
                with open(self.log, encoding="utf-8") as f:
                    sys.exit(f"bench.py: ztrain ended with exit code {self.process.returncode}:\n{f.read()}")
            time.sleep(pause)

    def ask(self, steps):
        """So many steps; returns tokens/s of each. The step that was stopped and the one after it are not counted."""
        first = len(self.lines()) + 2
        os.killpg(self.process.pid, signal.SIGCONT)
        self.wait(first + steps)
        os.killpg(self.process.pid, signal.SIGSTOP)
        return [self.tokens / json.loads(text)["seconds"]["step"] for text in self.lines()[first:first + steps]]

    def memory(self):
        """Peak bytes of the largest process."""
        return max(resident(self.process.pid))

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


# --- peers ------------------------------------------------------------------------------------------------------------

class Peer:
    """scripts/bench_torch.py, started once: one process, or two ranks of DeepSpeed. Between turns it waits."""

    def __init__(self, python, dtype, length, compiled, deepspeed, more):
        ranks = 2 if deepspeed else 1
        self.processes, self.tokens, self.memory = [], BATCH * length, 0
        self.started = time.monotonic()
        for rank in range(ranks):
            threads = str(max(1, os.cpu_count() // ranks))
            environment = {**os.environ, "OMP_NUM_THREADS": threads}
            if deepspeed:
                environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 10000),
                                "DS_ACCELERATOR": "cpu"}
            preload = [path for path in os.environ.get("ZTRAIN_BENCH_PRELOAD", "").split(":") if path]
            if preload:
                environment |= {"LD_PRELOAD": ":".join(preload), "THP_MEM_ALLOC_ENABLE": "1"}
            line = [python, f"{ROOT}/scripts/bench_torch.py", "--dtype", dtype, "--length", str(length),
                    "--batch", str(BATCH // ranks)]
            line += ["--deepspeed"] if deepspeed else (["--compile"] if compiled else [])
            line += more
            self.processes.append(subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                                                   start_new_session=True, text=True))
        self.ask(0)
        self.first = time.monotonic() - self.started
        self.ask(WARM_UP - 1)

    def ask(self, steps):
        """So many steps of every rank; returns tokens/s of each (the slowest rank's). One before them is not counted."""
        for process in self.processes:
            process.stdin.write(f"{steps + 1}\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            while True:
                text = process.stdout.readline()
                if not text:
                    self.end()
                    sys.exit("bench.py: a peer ended early; hint: its output is above")
                if text.startswith("{\"seconds\""):
                    answers.append(json.loads(text))
                    break
        self.memory = max(answer["memory"] for answer in answers)
        return [self.tokens / max(step) for step in zip(*(answer["seconds"][1:] for answer in answers))]

    def end(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def gib(size):
    return f"{size / 2 ** 30:.2f} GiB"


def against_peer(arguments, top, dtype, length, label, ranks=1, stage=0, compiled=True, deepspeed=False):
    """Alternates short turns and prints one line of the table. A machine that slows down for some seconds slows both."""
    settings, more = LORA if arguments.lora else [], ["--lora", str(LORA_RANK)] if arguments.lora else []
    if arguments.experts:
        settings = [f"model.config={top}/experts.json"]
        more = ["--config", f"{top}/experts.json", "--vocabulary", str(EXPERTS["vocab_size"]), "--experts", arguments.experts]
    peer = Peer(arguments.peers, dtype, length, compiled, deepspeed, more)
    ztrain = None
    ours, theirs, ratios = [], [], []
    try:
        ztrain = Ours(arguments.ztrain, top, dtype, length, ranks, stage, settings=settings)
        for _ in range(arguments.turns):
            rates, peer_rates = ztrain.ask(TURN_STEPS), peer.ask(TURN_STEPS)
            ours += rates
            theirs += peer_rates
            ratios.append(statistics.median(rates) / statistics.median(peer_rates))
        memory = ztrain.memory()
    finally:
        peer.end()
        if ztrain:
            ztrain.end()
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{dtype} T={length:<4} {label:<26} ztrain {statistics.median(ours):6.0f} (best {max(ours):6.0f}) tokens/s "
          f"{gib(memory)}   peer {statistics.median(theirs):6.0f} (best {max(theirs):6.0f}) {gib(peer.memory)}   "
          f"ratio {middle:.2f} (half of the turns: {low:.2f} to {high:.2f})   "
          f"first step {ztrain.first:.1f} s, peer {peer.first:.1f} s", flush=True)


# --- ztrain alone -----------------------------------------------------------------------------------------------------

def gemm_ceiling(program, dtype):
    """GFLOP/s of the fastest matrix product that the op test program measures, or None where it is not built."""
    if not os.path.exists(program):
        return None
    done = subprocess.run([program, "perf", "--op", "linear", "--dtype", dtype], stdout=subprocess.PIPE, text=True,
                          check=False, timeout=600)
    rates = [float(rate) for rate in re.findall(r"([\d.]+) GFLOP/s", done.stdout)]
    return max(rates, default=None)


def flops_per_token(length):
    """6 x parameters in matrix products + causal attention, of GPT-2 124M."""
    layers, width = 12, 768
    return 6 * (layers * 12 * width * width + width * VOCABULARY) + 6 * layers * width * length


def alone(arguments, top, dtype, length, ceiling):
    ztrain = Ours(arguments.ztrain, top, dtype, length)
    try:
        rates, memory, first = ztrain.ask(STEPS), ztrain.memory(), ztrain.first
    finally:
        ztrain.end()
    median = statistics.median(rates)
    share = f", {100e-9 * median * flops_per_token(length) / ceiling:.0f} % of {ceiling:.0f} GFLOP/s" if ceiling else ""
    print(f"\n{dtype} B={BATCH} T={length}: {median:.0f} tokens/s (best {max(rates):.0f}), "
          f"{1e-9 * median * flops_per_token(length):.0f} GFLOP/s{share}; peak memory {gib(memory)}; "
          f"first step {first:.2f} s after exec", flush=True)
    if arguments.no_profile:
        return
    line, folder = command(arguments.ztrain, top, "profile", dtype, length, 1, WARM_UP + STEPS, 0, ["--profile"])
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    shutil.rmtree(folder, ignore_errors=True)
    table = done.stdout.splitlines()
    for i, text in enumerate(table):
        if text.startswith("op "):
            rows = [row for row in table[i:] if len(row.split()) == 9 or row.startswith("op ")]
            print("\n".join("  " + row for row in rows), flush=True)
            break


def end_with_finally():
    """Lets SIGTERM unwind the stack, so that stopped processes are killed rather than left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def main():
    end_with_finally()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default=f"{ROOT}/build/ztrain")
    parser.add_argument("--ops-test", default=f"{ROOT}/build/ops-test")
    parser.add_argument("--case", action="append", metavar="DTYPE-T", help="e.g. bf16-256 (may be repeated)")
    parser.add_argument("--no-profile", action="store_true", help="without the time by operation")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--eager", action="store_true", help="PyTorch without torch.compile")
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--lora", action="store_true", help="PyTorch with PEFT, both train an adapter")
    parser.add_argument("--experts", metavar="IMPLEMENTATION", help="with --peers: a mixture of experts")
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    arguments.ztrain = os.path.abspath(arguments.ztrain)
    cases = CASES if not arguments.case else [(case.split("-")[0], int(case.split("-")[1])) for case in arguments.case]

    top = f"{ROOT}/build/bench"
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(top)
    write_tokens(f"{top}/tokens", 200000, arguments.experts)
    with open(f"{top}/experts.json", "w", encoding="utf-8") as f:
        json.dump(EXPERTS, f)
    model = "A mixture of experts" if arguments.experts else "GPT-2 124M"
    print(f"{model}, batch {BATCH}; median of steps after {WARM_UP} of warm-up; {os.cpu_count()} cores")
    ceilings, how = {}, "" if os.environ.get("ZTRAIN_BENCH_PRELOAD") else " as installed"
    for dtype, length in cases:
        if arguments.deepspeed:
            if dtype == "bf16":
                against_peer(arguments, top, dtype, length, f"2 ranks, ZeRO-3; DeepSpeed{how}", 2, 3, deepspeed=True)
        elif arguments.peers:
            label = f"{arguments.experts or ('PEFT' if arguments.lora else 'PyTorch')} {'eager' if arguments.eager else 'compiled'}{how}"
            against_peer(arguments, top, dtype, length, label, compiled=not arguments.eager)
        else:
            if dtype not in ceilings:
                ceilings[dtype] = gemm_ceiling(arguments.ops_test, dtype)
            alone(arguments, top, dtype, length, ceilings[dtype])
    shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    main()
