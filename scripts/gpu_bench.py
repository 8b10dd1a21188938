#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training speed on one GPU, next to what `ztrain plan --speed` expects of it, by kind of op, and next to PyTorch's, if it is there.

    scripts/gpu_bench.py                       GPT-2 124M and 1558M, and LLM.Q's shapes: Qwen2.5 0.5B, 1.5B, 3B, 7B; bf16, T = 1024
    scripts/gpu_bench.py --case gpt2-124m      cases whose name contains this

A step has 524,288 tokens, in as many micro-batches as that takes. Each case runs twice, with `train.deterministic: false`, of which the
goals and LLM.Q's figures are, and with results that repeat bit for bit, which is the default.

- ztrain trains for at least one whole step after the first, and for --seconds; tokens/s, MFU (docs/run-folder.md) and memory are its own,
  medians over steps. Where a step is expected to take over 30 s the first one counts, which also loads kernels: such a figure is
  a little too low, and its line says so. The expected tokens/s and MFU are the plan's with the same settings on this GPU, if the plan knows it.
- The step after these times each kind of op (`flops_profiler`) and is printed next to the plan's time. What takes more or less
  than the expected time by over 15 % is named. docs/gpu-log.md says what that may mean.
- LLM.Q's published MFU on an H100 and the goals for it are printed in the same line. To miss one is not a failure.
- PyTorch runs transformers' model with random weights, sdpa, torch.compile, fp32 weights under bf16 autocast, fused AdamW. Its
  micro-batches and its update are timed apart, and put together to such a step. The ratio is the tokens/s of ztrain with
  `train.deterministic: false` over PyTorch's.

The time that each of this takes is estimated from the plan, and what fits into --limit seconds is measured in the order of its
importance (docs/gpu-log.md). What the plan or ztrain has not enough memory for is left out; what there is no time for is 'not measured: out of
time'. Neither has passed or failed. A case fails if ztrain or an installed PyTorch ends with another error.
"""
import argparse
import importlib.util
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import typing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = 524288                 # of a step
PEER_WARM_UP = 3                # micro-batches of PyTorch
OFF = 0.15                      # part of the expected time by which a kind may differ unnamed
EXIT_DEVICE = 5                 # ztrain's code, also for too little memory
NO_FIT = "does not fit"
OUT_OF_TIME = "not measured: out of time"

# Seconds, of which no GPU has confirmed any; what a case really took corrects the estimates of those after it.
START = 8                       # of a run: process, context, libraries, data, plans of attention, the last steps that are thrown away
START_A_BILLION = 2             # parameters, which the host makes
MEASURING = 6                   # of the first run of a case: self-test, kernels of its products, which are kept for the next run
PEER = 50                       # of PyTorch, most of it torch.compile's
LONG_STEP = 12                  # a step whose ops are timed last, because it takes the time of whole cases
NO_WARM_UP = 30                 # a step that is not worth another one before it
UNKNOWN = 60                    # of a case of which nothing is expected
LONGEST = 240                   # of any run; one of which something is expected gets twice that and PATIENCE
PATIENCE = 45

def gpt2(width, layers, heads):
    return {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
            "n_embd": width, "n_layer": layers, "n_head": heads}


def qwen(width, inner, heads, kv_heads, layers, vocabulary, tied):
    return {"model_type": "qwen2", "hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "num_hidden_layers": layers, "vocab_size": vocabulary, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "hidden_act": "silu", "initializer_range": 0.02,
            "tie_word_embeddings": tied}


class Case(typing.NamedTuple):
    model: dict
    length: int
    batch: int                  # of a micro-batch
    settings: dict = {}
    llmq: float = None          # per cent of MFU that LLM.Q has published for this shape on an H100 (docs/plan-speed.md)
    goal: float = None          # per cent of MFU that ztrain is to reach on an H100
    peer: bool = False          # whether PyTorch runs it: with fp32 weights and logits, not all of them fit


GPT2_124M, GPT2_1558M, QWEN_7B = gpt2(768, 12, 12), gpt2(1600, 48, 25), qwen(3584, 18944, 28, 4, 28, 152064, False)
BF16_GRADIENTS = {"data_types.grad_accum_dtype": "bf16"}  # as LLM.Q's; with fp32 ones 3B needs 31 MiB more than an H100 has
BF16_STATES = {"bf16.bf16_master_weights_and_grads": "true", "bf16.bf16_optimizer_states": "true"}
# In the order of their importance.
CASES = {
    "gpt2-124m-b128": Case(GPT2_124M, 1024, 128, goal=47),
    "gpt2-1558m": Case(GPT2_1558M, 1024, 16, goal=57, peer=True),
    "qwen2.5-0.5b": Case(qwen(896, 4864, 14, 2, 24, 151936, True), 1024, 32, llmq=46.6, peer=True),
    "qwen2.5-1.5b": Case(qwen(1536, 8960, 12, 2, 28, 151936, True), 1024, 16, llmq=56.6, peer=True),
    "qwen2.5-3b": Case(qwen(2048, 11008, 16, 2, 36, 151936, True), 1024, 8, BF16_GRADIENTS, llmq=59.2, peer=True),
    "qwen2.5-7b-bf16": Case(QWEN_7B, 1024, 4, BF16_STATES, llmq=60.0),
    "gpt2-124m": Case(GPT2_124M, 1024, 32, peer=True),
    "qwen2.5-7b": Case(QWEN_7B, 1024, 4),
}
FIRST_PEER = "gpt2-124m"        # the case in which PyTorch is compared first
ELSEWHERE = "the goal of 63 % MFU at 8B needs eight GPUs: it is not measured here"
# Kind: rows of the plan, rows of the profile
KINDS = {
    "products": (("GEMM forward", "GEMM dgrad", "GEMM wgrad", "bias gradients", "SwiGLU", "head GEMMs"),
                 ("linear_fwd", "linear_bwd_input", "linear_bwd_weight", "swiglu_fwd")),
    "attention forward": (("attention forward",), ("attention_fwd",)),
    "attention backward": (("attention backward",), ("attention_bwd",)),
    "norms": (("norms",), ("norm_fwd", "norm_bwd")),
    "RoPE": (("RoPE",), ("rope",)),
    "cross-entropy": (("cross-entropy",), ("cross_entropy",)),
    "embedding": (("embedding",), ("embedding_fwd", "embedding_bwd")),
    "optimizer": (("optimizer",), ("sumsq", "decide_step", "find_nonfinite", "adam", "accumulate", "sum_ranks")),
}


def write_tokens(prefix, count, vocabulary):
    """A million random tokens, repeated: enough for no turn to reach the end of an epoch, where ztrain writes a checkpoint."""
    rng, once = random.Random(1), 1 << 20
    tokens = struct.pack(f"<{once}i", *(rng.randrange(vocabulary) for _ in range(once)))
    with open(prefix + ".bin", "wb") as f:
        for _ in range(count // once):
            f.write(tokens)
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<iq2q", count, 0, 0, 1))


# --- ztrain -----------------------------------------------------------------------------------------------------------

def last_line(text):
    return (text.strip().splitlines() or ["it printed nothing"])[-1].strip()[:200]


class Run:
    """The command of a case, with so many micro-batches in a step."""

    def __init__(self, arguments, top, name, accumulation, deterministic=True):
        case = arguments.cases[name]
        self.length, self.batch, self.accumulation = case.length, case.batch, accumulation
        self.ztrain = arguments.ztrain
        self.log = f"{arguments.out}/bench-{name}{'' if deterministic else '-fast'}.log"
        self.folder, self.profile = f"{top}/run", self.log.removesuffix("log") + "profile"
        with open(f"{top}/{name}.json", "w", encoding="utf-8") as f:
            json.dump(case.model, f)
        with open(f"{top}/spec.yaml", "w", encoding="utf-8") as f:
            f.write("optimizer:\n  type: AdamW\n")
        self.settings = {"run.dir": top, "run.name": "run", "model.config": f"{top}/{name}.json", "data.train": f"{top}/tokens",
                         "data.seq_length": self.length, "train.device": arguments.device, "train.max_steps": 1000000,
                         "train_batch_size": self.batch * accumulation, "train_micro_batch_size_per_gpu": self.batch,
                         "bf16.enabled": "true", "optimizer.params.lr": 1e-5, "gradient_clipping": 1.0, "steps_per_print": 1000,
                         "checkpoint.save_at_epoch_end": "false", "checkpoint.writer.decoupled": "false",  # its copy would be pinned
                         "train.deterministic": str(deterministic).lower(),
                         **case.settings}
        self.start = ["--config", f"{top}/spec.yaml"]

    def command(self, *words, **changes):
        line = [self.ztrain, *words, *self.start]
        for key, value in {**self.settings, **changes}.items():
            line += ["--set", f"{key}={value}"]
        return line

    def watch(self, line, done, limit):
        """Runs a command until done() is true, and ends it then. None, or why that did not come."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if os.path.exists(self.profile):
            os.remove(self.profile)
        with open(self.log, "w", encoding="utf-8") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + limit
        try:
            while not done():
                if process.poll() is not None:
                    return None if done() else self.why(process.returncode)
                if time.monotonic() > end:
                    return f"{OUT_OF_TIME}: not done within {limit:.0f} s"
                time.sleep(0.1)
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def why(self, code):
        last = last_line(self.said())
        return f"{NO_FIT}: {last}" if code == EXIT_DEVICE and re.search(r"\d [MGT]iB", last) else f"exit {code}: {last}"

    def rows(self, first, last):
        """Those of metrics.jsonl of the steps from first to last that are over."""
        try:
            with open(f"{self.folder}/metrics.jsonl", encoding="utf-8") as f:
                rows = [json.loads(line) for line in f.read().split("\n")[:-1]]
        except FileNotFoundError:
            return []
        return [row for row in rows if "loss" in row and first <= row["step"] <= last]

    def ops(self):
        """Seconds of each op in the step that was profiled; nothing before it is over."""
        if not os.path.exists(self.profile):
            return {}
        row = re.compile(r"^(\w+) +\d+ +([\d.]+) +[\d.]+% .*$", re.M)
        with open(self.profile, encoding="utf-8") as f:
            return {name: float(seconds) for name, seconds in row.findall(f.read())}


def gpu_name(arguments, top):
    """The GPU's as the driver has it, from ztrain's plan of a tiny model, which measures nothing."""
    model = {**gpt2(64, 1, 1), "vocab_size": 64}
    run = Run(argparse.Namespace(**{**vars(arguments), "cases": {"name": Case(model, 64, 1)}}), top, "name", 1)
    done = subprocess.run(run.command("plan"), capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"% of the [\d.]+ \wiB of (.+?)(?:, assumed)?$", done.stdout, re.M)
    return found.group(1) if found else "unknown"


def plan(run, name):
    """Of a GPU: expected milliseconds of a step by row of the plan, tokens/s, MFU, and why it does not fit, or None. None if there
    is no plan, as of a GPU that it does not know; run.no_plan says why."""
    line = run.command("plan", "--speed", "--device", name)
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        run.no_plan = last_line(done.stderr)
        return None
    rows = re.findall(r"^  ([A-Za-z][A-Za-z -]+?) +[\d.]+ +([\d.]+) +[\d.]+ %$", done.stdout, re.M)
    rate = re.search(r"^  tokens/s +\d+ +(\d+)$", done.stdout, re.M)
    share = re.search(r"^  MFU +[\d.]+% +([\d.]+)%$", done.stdout, re.M)
    no_fit = re.search(r"^  this step does not fit: (.*)$", done.stdout, re.M)
    return {"rows": {kind: float(ms) for kind, ms in rows}, "tokens/s": float(rate.group(1)), "mfu": float(share.group(1)),
            "no fit": no_fit and no_fit.group(1)}


def by_kind(expected, seconds, accumulation):
    """(kind, milliseconds of a micro-batch, expected ones) of a profiled step; the optimizer's are those of the step."""
    rows = []
    for kind, (planned, ops) in KINDS.items():
        parts = 1 if kind == "optimizer" else accumulation
        measured = 1e3 * sum(seconds.get(op, 0) for op in ops) / parts
        hoped = sum(expected.get(row, 0) for row in planned) / parts
        if measured or hoped:
            rows.append((kind, measured, hoped))
    return rows


def is_off(measured, expected):
    return not abs(measured - expected) <= OFF * expected


# --- PyTorch (a separate process, so that its memory is gone when ztrain's turn comes) --------------------------------

def torch_turn(arguments, top, name, limit):
    """Seconds of a micro-batch, of an update, bytes of the GPU, and why not."""
    length, batch = arguments.cases[name].length, arguments.cases[name].batch
    line = [sys.executable, os.path.abspath(__file__), "--peer", f"{top}/{name}.json", str(length), str(batch),
            "--seconds", str(arguments.seconds)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None, f"{OUT_OF_TIME}: not done within {limit:.0f} s"
    for text in done.stdout.splitlines():
        if text.startswith("{\"micro\""):
            return json.loads(text), None
    last = last_line(done.stderr)
    return None, f"{NO_FIT}: {last}" if "out of memory" in done.stderr else last


def peer(path, length, batch, seconds):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    with open(path, encoding="utf-8") as f:
        settings = json.load(f)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings, use_cache=False)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    compiled = torch.compile(model)
    tokens = torch.randint(0, config.vocab_size, (batch, length), device="cuda")

    def micro():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()

    def update():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # the sums of the micro-batches stay where they are

    def timed(work, repeats):
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
        return (time.monotonic() - start) / repeats

    for _ in range(PEER_WARM_UP):
        micro()
        update()
    micros, updates, end = [], [], time.monotonic() + seconds
    while time.monotonic() < end:
        micros.append(timed(micro, 4))
        updates.append(timed(update, 2))
    print(json.dumps({"micro": statistics.median(micros), "update": statistics.median(updates),
                      "memory": torch.cuda.max_memory_allocated()}), flush=True)


# --- what there is time for -------------------------------------------------------------------------------------------

class Task:
    """Something to measure: a case with train.deterministic true or false, or PyTorch in it."""

    def __init__(self, arguments, top, name, deterministic, torch=False):
        case = arguments.cases[name]
        self.name, self.deterministic, self.torch = name, deterministic, torch
        self.run = Run(arguments, top, name, max(1, arguments.tokens // (case.length * case.batch)), deterministic)
        self.tokens = self.run.accumulation * case.length * case.batch
        self.expected = None if torch else plan(self.run, arguments.gpu)
        self.title = f"{name:<15} " + ("torch" if torch else f"T={case.length} B={case.batch} x {self.run.accumulation}, " + (
            "deterministic" if deterministic else "deterministic: false"))
        # Layers and embeddings of GPT-2 and Qwen2.5, near enough for a time.
        width, layers = (case.model.get(key, case.model.get(other)) for key, other in (("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers")))
        self.billions = (12 * layers * width + case.model["vocab_size"]) * width / 1e9
        self.seconds = arguments.seconds

    def no_fit(self):
        return self.expected["no fit"] if self.expected else None

    def step(self, slower):
        """Expected seconds of a step on a GPU that is so many times slower than the plan expects."""
        return slower * self.tokens / self.expected["tokens/s"] if self.expected else 0

    def steps(self, slower):
        """(steps of warm-up, measured steps)."""
        if not self.expected:
            return 1, 1
        return 0 if self.step(slower) > NO_WARM_UP else 1, min(100, max(1, math.ceil(self.seconds / self.step(slower))))

    def cost(self, slower, first):
        """Expected seconds of the run, without the step that times each op; first: the first run of this case."""
        if self.torch:
            return PEER + self.seconds
        if not self.expected:
            return UNKNOWN
        return START + START_A_BILLION * self.billions + MEASURING * first + sum(self.steps(slower)) * self.step(slower)


def by_importance(tasks, slower):
    """(task, whether it is the timing of each op in a run of the task) of all tasks: the goals and LLM.Q's shapes as published, with their ops;
    PyTorch; the same cases with results that repeat; what takes longest."""
    def rank(item):
        task, ops = item
        if ops and task.step(slower) > LONG_STEP:
            return 6
        if task.torch:
            return 2 if task.name == FIRST_PEER else 5
        return (3 if task.deterministic else 0) + ops
    return sorted([(task, ops) for task in tasks for ops in ((False,) if task.torch else (False, True))], key=rank)


def schedule(tasks, left, slower=1, known=()):
    """{task: whether its ops are timed} of the tasks for which `left` seconds suffice, the most important first. known: cases of which there
    was a run already."""
    chosen, started = {}, set(known)
    for task, ops in by_importance(tasks, slower):
        if ops and task not in chosen:
            continue
        cost = task.step(slower) if ops else task.cost(slower, task.name not in started)
        if cost <= left:
            chosen[task], left = ops, left - cost
            started.add(task.name)
    return chosen


# --- the table --------------------------------------------------------------------------------------------------------

def print_kinds(rows):
    print(f"    {'ms of a micro-batch':<22}{'measured':>10}{'expected':>10}{'ratio':>8}")
    for kind, measured, expected in rows:
        ratio = f"{measured / expected:8.2f}" if expected else f"{'':>8}"
        print(f"    {kind + (' (a step)' if kind == 'optimizer' else ''):<22}{measured:10.3f}{expected:10.3f}{ratio}")
    off = [f"{kind} ({measured / expected:.2f} of the expected time)" if expected else f"{kind} (not expected)"
           for kind, measured, expected in rows if is_off(measured, expected)]
    print(f"    off by more than {100 * OFF:.0f} %: {', '.join(off) or 'none'}", flush=True)


def next_to(mfu, gpu, what, figure, reached, missed):
    """'; LLM.Q 46.6 % on an H100: ahead'. Of another GPU there is no verdict, because its peak is another one."""
    verdict = f": {reached if mfu >= figure else missed}" if mfu is not None and "H100" in gpu else ""
    return f"; {what} {figure:g} % on an H100{verdict}"


def speed_line(arguments, task, rows, warm_up):
    """Measured next to expected; and tokens/s."""
    case, ours = arguments.cases[task.name], task.tokens / statistics.median(row["seconds"]["step"] for row in rows)
    shares = [row["mfu"] for row in rows if row["mfu"] is not None]
    mfu = 100 * statistics.median(shares) if shares else None
    text = f"{task.title}: ztrain {ours:.0f} tokens/s MFU " + (f"{mfu:.1f} %" if shares else "unknown")
    if task.expected:
        text += f", expected {task.expected['tokens/s']:.0f} ({task.expected['mfu']:.1f} %), ratio {ours / task.expected['tokens/s']:.2f}"
        text += " OFF" if is_off(ours, task.expected["tokens/s"]) else ""
    if case.llmq:
        text += next_to(mfu, arguments.gpu, "LLM.Q", case.llmq, "ahead", "behind")
    if case.goal:
        text += next_to(mfu, arguments.gpu, "goal", case.goal, "reached", "missed")
    text += f"; {rows[-1]['memory_bytes']['device'] / 2**30:.1f} GiB, {len(rows)} step{'s' if len(rows) > 1 else ''}"
    return text + ("" if warm_up else ", the first one, which also loads kernels"), ours


def measure(arguments, task, timed, slower, left):
    """(True: passed, False: failed, None: left out; ztrain's tokens/s) in `left` seconds. timed: also each kind of op."""
    run = task.run
    patience = min(LONGEST, 2 * (task.cost(slower, True) + timed * task.step(slower)) + PATIENCE) if task.expected else LONGEST
    warm_up, measured = task.steps(slower)
    first, last = warm_up + 1, warm_up + measured
    changes = {"flops_profiler.enabled": "true", "flops_profiler.profile_step": last + 1, "flops_profiler.output_file": run.profile}
    why = run.watch(run.command(**changes if timed else {}), lambda: len(run.rows(first, last)) == measured and (not timed or run.ops()),
                    min(patience, left))
    rows = run.rows(first, last)
    if why and not (rows and OUT_OF_TIME in why):
        if NO_FIT in why:
            why = f"left out: {why}" + (" (the plan says that it fits)" if task.expected else "")
        if OUT_OF_TIME in why and patience < left:  # it hangs
            why = f"not done within {patience:.0f} s: {last_line(run.said())}"
        print(f"{task.title}: {why}", flush=True)
        return None if NO_FIT in why or OUT_OF_TIME in why else False, None
    text, ours = speed_line(arguments, task, rows, warm_up)
    print(text, flush=True)
    if not task.expected:
        print(f"    by kind of op: nothing is expected of '{arguments.gpu}': {task.run.no_plan}", flush=True)
    elif run.ops():
        print_kinds(by_kind(task.expected["rows"], run.ops(), run.accumulation))
    else:
        print(f"    by kind of op: {OUT_OF_TIME}", flush=True)
    return True, ours


def compare_with_torch(arguments, top, task, ours, left):
    """Prints PyTorch's speed and the ratio; True, False: an error, None: left out."""
    answer, why = torch_turn(arguments, top, task.name, min(arguments.seconds + 120, left))
    if why:
        print(f"{task.title}: {'left out: ' if NO_FIT in why else ''}{why}", flush=True)
        return None if NO_FIT in why or OUT_OF_TIME in why else False
    rate = task.tokens / (task.run.accumulation * answer["micro"] + answer["update"])
    print(f"{task.title}: ztrain {ours:.0f}, torch {rate:.0f} tokens/s, ratio {ours / rate:.2f}; torch {answer['memory'] / 2**30:.1f} GiB",
          flush=True)
    return None


def torch_is_missing(arguments):
    """Why PyTorch is not compared, or None."""
    missing = [package for package in ("torch", "transformers") if not importlib.util.find_spec(package)]
    if missing:
        return f"there is no {' and no '.join(missing)} for {sys.executable}; hint: {sys.executable} -m pip install torch transformers"
    return None if arguments.device == "cuda" else "it is compared on GPUs only"


def tasks_of(arguments, top):
    """What there is to measure; cases that the plan has not enough memory for are left out."""
    tasks = []
    for deterministic in (False, True):
        for name in arguments.cases:
            task = Task(arguments, top, name, deterministic)
            if task.no_fit():
                print(f"{task.title}: left out: {NO_FIT}: {task.no_fit()}", flush=True)
            else:
                tasks.append(task)
    why = torch_is_missing(arguments)
    if why:
        print(f"torch: left out: {why}", flush=True)
        return tasks
    return tasks + [Task(arguments, top, name, False, torch=True) for name, case in arguments.cases.items() if case.peer]


def measure_all(arguments, top, end):
    """Results of measure()."""
    tasks, results, speeds, started, ratios = tasks_of(arguments, top), [], {}, set(), []
    while tasks:
        left, factor = end - time.monotonic(), max(1, statistics.median(ratios or [1]))
        own = {task.name for task in tasks if not task.torch and not task.deterministic}  # those that PyTorch may yet be compared with
        chosen = schedule([task for task in tasks if not task.torch or task.name in speeds or task.name in own], left, factor, started)
        ready = [task for task in chosen if not task.torch or task.name in speeds]
        if not ready:
            break
        task, timed = ready[0], chosen[ready[0]]
        tasks.remove(task)
        if task.torch:
            results.append(compare_with_torch(arguments, top, task, speeds[task.name], left))
            continue
        result, ours = measure(arguments, task, timed, factor, left)
        results.append(result)
        started.add(task.name)
        if ours and not task.deterministic:
            speeds[task.name] = ours
        if ours and task.expected:
            ratios.append(task.expected["tokens/s"] / ours)
    for task in tasks:
        if task.torch and task.name not in speeds:
            print(f"{task.title}: left out: there is no speed of ztrain's to compare with", flush=True)
            continue
        needs = task.cost(factor, task.name not in started)
        print(f"{task.title}: {OUT_OF_TIME}: it takes about {needs:.0f} s, {max(0, left):.0f} are left", flush=True)
    return results


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default="build/ztrain")
    parser.add_argument("--case", default="")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--out", default=".", help="folder of ztrain's logs and its profiles of each op")
    parser.add_argument("--gpu", help="the GPU of which the plan's times are expected, instead of this one")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help=argparse.SUPPRESS)
    parser.add_argument("--cases", help=argparse.SUPPRESS)  # a JSON file instead of CASES
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.ztrain, arguments.out = os.path.abspath(arguments.ztrain), os.path.abspath(arguments.out)
    if arguments.cases:
        with open(arguments.cases, encoding="utf-8") as f:
            arguments.cases = {name: Case(**case) for name, case in json.load(f).items()}
    else:
        arguments.cases = CASES
    arguments.cases = {name: case for name, case in arguments.cases.items() if arguments.case in name}
    if not arguments.cases:
        parser.error(f"no case is named like '{arguments.case}'")
    return arguments


def main():
    arguments = parse()
    if arguments.peer:
        peer(arguments.peer[0], int(arguments.peer[1]), int(arguments.peer[2]), arguments.seconds)
        return
    end = time.monotonic() + arguments.limit
    top = tempfile.mkdtemp(prefix="ztrain-gpu-bench-")
    try:
        vocabulary = min(case.model["vocab_size"] for case in arguments.cases.values())
        write_tokens(f"{top}/tokens", 1 << (26 if arguments.device == "cuda" else 20), vocabulary)
        arguments.gpu = arguments.gpu or gpu_name(arguments, top)
        results = measure_all(arguments, top, end)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    if arguments.cases == CASES:
        print(ELSEWHERE)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    sys.exit(False in results)


if __name__ == "__main__":
    main()
