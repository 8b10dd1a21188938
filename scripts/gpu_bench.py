#!/usr/bin/env python3
"""Training speed on one GPU, next to what `ztrain plan --speed` expects of it, by kind of op, and next to PyTorch's, if it is there.

    scripts/gpu_bench.py                       GPT-2 124M and 1558M, and LLM.Q's shapes: Qwen2.5 0.5B, 1.5B, 3B, 7B; bf16, T = 1024
    scripts/gpu_bench.py --case gpt2-124m      cases whose name contains this

A step has 524,288 tokens, in as many micro-batches as that takes. For each case:

- ztrain trains for --seconds, at least one whole step after the first; tokens/s, MFU (docs/operations.md) and memory are its own,
  medians over steps. The expected tokens/s are those of the plan for this GPU, if its name is in the plan's list.
- Each kind of op is timed alone (`--profile`, in a run of two short steps) and printed next to the plan's time for the same run. What
  takes more or less than the expected time by over 15 % is named. docs/gpu-log.md says what that may mean.
- PyTorch runs transformers' model with random weights, sdpa, torch.compile, fp32 weights under bf16 autocast, fused AdamW. Its
  micro-batches and its update are timed apart, and put together to such a step. The ratio is ztrain's tokens/s over PyTorch's. This
  comes after ztrain's cases, in the time that is left.

A case that does not fit the GPU's memory, or for which --limit seconds from the start leave no time, is left out: it has neither passed
nor failed. A case fails if ztrain or an installed PyTorch ends with another error.
"""
import argparse
import importlib.util
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
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = 524288                 # of a step
WARM_UP = 1                     # steps of ztrain, which are long
PEER_WARM_UP = 3                # micro-batches of PyTorch
PROFILED = 2                    # steps of the profile
PROFILED_MICRO_BATCHES = 4      # of each of these steps
OFF = 0.15                      # part of the expected time by which a kind may differ unnamed
LONGEST = 150                   # seconds of a run
LEAST_FOR_TORCH = 45            # seconds in which PyTorch can compile a model and run it
EXIT_DEVICE = 5                 # ztrain's code, also for too little memory
NO_FIT = "does not fit"


def gpt2(width, layers, heads):
    return {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
            "n_embd": width, "n_layer": layers, "n_head": heads}


def qwen(width, inner, heads, kv_heads, layers, vocabulary, tied):
    return {"model_type": "qwen2", "hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "num_hidden_layers": layers, "vocab_size": vocabulary, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "hidden_act": "silu", "initializer_range": 0.02,
            "tie_word_embeddings": tied}


# name: model, length, micro batch; those of Qwen2.5 are the ones for which LLM.Q has published figures (docs/performance.md)
CASES = {
    "gpt2-124m": (gpt2(768, 12, 12), 1024, 32),
    "qwen2.5-0.5b": (qwen(896, 4864, 14, 2, 24, 151936, True), 1024, 32),
    "qwen2.5-7b": (qwen(3584, 18944, 28, 4, 28, 152064, False), 1024, 4),
    "gpt2-1558m": (gpt2(1600, 48, 25), 1024, 16),
    "qwen2.5-1.5b": (qwen(1536, 8960, 12, 2, 28, 151936, True), 1024, 16),
    "qwen2.5-3b": (qwen(2048, 11008, 16, 2, 36, 151936, True), 1024, 8),
}
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
    "optimizer": (("optimizer",), ("sumsq", "decide_step", "find_nonfinite", "adam")),
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

class Run:
    """The command of a case, with so many micro-batches in a step."""

    def __init__(self, arguments, top, name, accumulation):
        model, self.length, self.batch = arguments.cases[name]
        self.ztrain, self.accumulation = arguments.ztrain, accumulation
        self.log = f"{arguments.out}/bench-{name}.log"
        self.folder = f"{top}/run"
        with open(f"{top}/{name}.json", "w", encoding="utf-8") as f:
            json.dump(model, f)
        with open(f"{top}/spec.yaml", "w", encoding="utf-8") as f:
            f.write("optimizer:\n  type: AdamW\n")
        self.settings = {"run.dir": top, "run.name": "run", "model.config": f"{top}/{name}.json", "data.train": f"{top}/tokens",
                         "data.seq_length": self.length, "train.device": arguments.device, "train.max_steps": 1000000,
                         "train_batch_size": self.batch * accumulation, "train_micro_batch_size_per_gpu": self.batch,
                         "bf16.enabled": "true", "optimizer.params.lr": 1e-5, "gradient_clipping": 1.0, "steps_per_print": 1000,
                         "checkpoint.save_at_epoch_end": "false"}
        self.start = ["--config", f"{top}/spec.yaml"]

    def command(self, *words, **changes):
        line = [self.ztrain, *words, *self.start]
        for key, value in {**self.settings, **changes}.items():
            line += ["--set", f"{key}={value}"]
        return line

    def watch(self, line, done, limit):
        """Runs a command until done() is true, and ends it then. None, or why that did not come."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with open(self.log, "w", encoding="utf-8") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + limit
        try:
            while not done():
                if process.poll() is not None:
                    return None if done() else self.why(process.returncode)
                if time.monotonic() > end:
                    return f"not done within {limit:.0f} s"
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
        last = (self.said().strip().splitlines() or ["it printed nothing"])[-1][:200]
        return f"{NO_FIT}: {last}" if code == EXIT_DEVICE and "GiB" in last else f"exit {code}: {last}"

    def steps(self):
        try:
            with open(f"{self.folder}/metrics.jsonl", encoding="utf-8") as f:
                return [row for row in map(json.loads, f.read().split("\n")[:-1]) if "loss" in row][WARM_UP:]
        except FileNotFoundError:
            return []


def speed(run, seconds, limit):
    """Rows of metrics.jsonl, or why not."""
    first = []

    def done():
        if run.steps() and not first:
            first.append(time.monotonic())
        return bool(first) and sum(row["seconds"]["step"] for row in run.steps()) >= seconds
    why = run.watch(run.command(), done, limit)
    return (None, why) if why else (run.steps(), None)


def profile(run, limit):
    """Seconds of each op in the run, or None and why."""
    row = re.compile(r"^(?:\[0\] )?(\w+) +\d+ +([\d.]+) +[\d.]+% .*$", re.M)
    end = re.compile(r"^(?:\[0\] )?(?:adam|momentum) +\d+ .*\n", re.M)  # the last row
    why = run.watch(run.command("--profile", **{"train.max_steps": PROFILED}), lambda: end.search(run.said()), limit)
    return (None, why) if why else ({name: float(seconds) for name, seconds in row.findall(run.said())}, None)


def gpu_name(said):
    """Of the device, as its driver names it, from the log of a run."""
    found = re.search(r"; device: ([^,]+), ", said)
    return found.group(1) if found else "unknown"


def plan(run, name):
    """Expected milliseconds of a step by row of the plan and tokens/s of a GPU, or None: it does not know that GPU."""
    line = run.command("plan", "--speed", "--device", name)
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return None
    rows = re.findall(r"^  ([A-Za-z][A-Za-z -]+?) +[\d.]+ +([\d.]+) +[\d.]+ %$", done.stdout, re.M)
    rate = re.search(r"^  tokens/s +\d+ +(\d+)$", done.stdout, re.M)
    return {"rows": {kind: float(ms) for kind, ms in rows}, "tokens/s": float(rate.group(1))}


def by_kind(expected, seconds):
    """(kind, milliseconds of a micro-batch, expected ones) of a profiled run; the optimizer's are those of a step."""
    rows = []
    for kind, (planned, ops) in KINDS.items():
        parts = 1 if kind == "optimizer" else PROFILED_MICRO_BATCHES
        measured = 1e3 * sum(seconds.get(op, 0) for op in ops) / PROFILED / parts
        hoped = sum(expected.get(row, 0) for row in planned) / parts
        if measured or hoped:
            rows.append((kind, measured, hoped))
    return rows


def is_off(measured, expected):
    return not abs(measured - expected) <= OFF * expected


# --- PyTorch (a separate process, so that its memory is gone when ztrain's turn comes) --------------------------------

def torch_turn(arguments, top, name, limit):
    """Seconds of a micro-batch, of an update, bytes of the GPU, and why not."""
    _, length, batch = arguments.cases[name]
    line = [sys.executable, os.path.abspath(__file__), "--peer", f"{top}/{name}.json", str(length), str(batch),
            "--seconds", str(arguments.seconds)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None, "left out: no time left"
    for text in done.stdout.splitlines():
        if text.startswith("{\"micro\""):
            return json.loads(text), None
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:200]
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


# --- the table --------------------------------------------------------------------------------------------------------

def print_kinds(rows):
    print(f"    {'ms of a micro-batch':<22}{'measured':>10}{'expected':>10}{'ratio':>8}")
    for kind, measured, expected in rows:
        ratio = f"{measured / expected:8.2f}" if expected else f"{'':>8}"
        print(f"    {kind + (' (a step)' if kind == 'optimizer' else ''):<22}{measured:10.3f}{expected:10.3f}{ratio}")
    off = [f"{kind} ({measured / expected:.2f} of the expected time)" if expected else f"{kind} (not expected)"
           for kind, measured, expected in rows if is_off(measured, expected)]
    print(f"    off by more than {100 * OFF:.0f} %: {', '.join(off) or 'none'}", flush=True)


def measure_kinds(arguments, top, name, limit):
    """Prints the table by kind of op; whether it could be measured."""
    run = Run(arguments, top, name, PROFILED_MICRO_BATCHES)
    seconds, why = profile(run, limit)
    if why:
        print(f"    by kind of op: {why}", flush=True)
        return why.startswith("not done") or NO_FIT in why
    expected = plan(run, arguments.gpu or gpu_name(run.said()))
    if expected:
        print_kinds(by_kind(expected["rows"], seconds))
    else:
        print(f"    by kind of op: nothing is expected of '{gpu_name(run.said())}', which `ztrain plan --device` does not know", flush=True)
    return True


def compare_with_torch(arguments, top, name, ours, left):
    """Prints PyTorch's speed and the ratio; whether there was no error."""
    _, length, batch = arguments.cases[name]
    if left < LEAST_FOR_TORCH:
        print(f"{name:<13} torch: left out: no time left", flush=True)
        return True
    answer, why = torch_turn(arguments, top, name, min(arguments.seconds + 120, left))
    if why:
        print(f"{name:<13} torch: {'left out: ' if NO_FIT in why else ''}{why}", flush=True)
        return "left out" in why or NO_FIT in why
    accumulation = max(1, arguments.tokens // (length * batch))
    rate = accumulation * length * batch / (accumulation * answer["micro"] + answer["update"])
    print(f"{name:<13} ztrain {ours:.0f}, torch {rate:.0f} tokens/s, ratio {ours / rate:.2f}; torch {answer['memory'] / 2**30:.1f} GiB", flush=True)
    return True


def case(arguments, top, name, left):
    """(True: passed, False: failed, None: left out; ztrain's tokens/s) with `left` seconds."""
    _, length, batch = arguments.cases[name]
    run = Run(arguments, top, name, max(1, arguments.tokens // (length * batch)))
    title, end = f"{name:<13} T={length:<5} B={batch} x {run.accumulation}", time.monotonic() + left
    steps, why = speed(run, arguments.seconds, min(LONGEST, left))
    if why:
        out = NO_FIT in why or (why.startswith("not done") and left < LONGEST)
        print(f"{title}: {'left out: ' if out else ''}{why}", flush=True)
        return None if out else False, None
    ours = run.accumulation * batch * length / statistics.median(row["seconds"]["step"] for row in steps)
    shares = [row["mfu"] for row in steps if row["mfu"] is not None]
    expected = plan(run, arguments.gpu or gpu_name(run.said()))
    text = f"{title}: ztrain {ours:.0f} tokens/s MFU " + (f"{100 * statistics.median(shares):.1f} %" if shares else "unknown")
    if expected:
        text += f", expected {expected['tokens/s']:.0f}, ratio {ours / expected['tokens/s']:.2f}"
        text += " OFF" if is_off(ours, expected["tokens/s"]) else ""
    print(f"{text}; {steps[-1]['memory_bytes']['device'] / 2**30:.1f} GiB", flush=True)
    return measure_kinds(arguments, top, name, max(5, min(LONGEST, end - time.monotonic()))), ours


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default="build/ztrain")
    parser.add_argument("--case", default="")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--out", default=".", help="folder of ztrain's logs")
    parser.add_argument("--gpu", help="the GPU of which the plan's times are expected, instead of this one")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help=argparse.SUPPRESS)
    parser.add_argument("--cases", help=argparse.SUPPRESS)  # a JSON file instead of CASES
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.ztrain, arguments.out = os.path.abspath(arguments.ztrain), os.path.abspath(arguments.out)
    if arguments.cases:
        with open(arguments.cases, encoding="utf-8") as f:
            arguments.cases = json.load(f)
    else:
        arguments.cases = CASES
    if not any(arguments.case in name for name in arguments.cases):
        parser.error(f"no case is named like '{arguments.case}'")
    return arguments


def main():
    arguments = parse()
    if arguments.peer:
        peer(arguments.peer[0], int(arguments.peer[1]), int(arguments.peer[2]), arguments.seconds)
        return
    top = tempfile.mkdtemp(prefix="ztrain-gpu-bench-")
    results, speeds, longest, end = [], {}, 0, time.monotonic() + arguments.limit
    try:
        vocabulary = min(model["vocab_size"] for model, _, _ in arguments.cases.values())
        write_tokens(f"{top}/tokens", 1 << (26 if arguments.device == "cuda" else 20), vocabulary)
        for name in arguments.cases:
            started = time.monotonic()
            if arguments.case not in name:
                continue
            if started + longest > end:
                print(f"{name:<13} left out: no time left", flush=True)
                continue
            result, ours = case(arguments, top, name, end - started)
            results.append(result)
            if ours:
                speeds[name], longest = ours, max(longest, time.monotonic() - started)
        if arguments.device == "cuda" and all(importlib.util.find_spec(package) for package in ("torch", "transformers")):
            results += [False for name, ours in speeds.items()
                        if not compare_with_torch(arguments, top, name, ours, end - time.monotonic())]
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    sys.exit(False in results)


if __name__ == "__main__":
    main()
