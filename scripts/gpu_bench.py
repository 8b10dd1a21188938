#!/usr/bin/env python3
"""Training speed on one GPU against PyTorch's, one after the other in one run: tokens/s, MFU, memory, ratios.

    scripts/gpu_bench.py                       GPT-2 124M and 1.5B, Llama 1B, half of an 8B; T = 1024 and 4096; bf16
    scripts/gpu_bench.py --case gpt2-124m      cases whose name contains this

PyTorch runs transformers' model with random weights, sdpa, torch.compile, fp32 weights under bf16 autocast, fused AdamW.
Each side trains for --seconds in each of --turns turns; figures are medians over steps. A case that does not fit the
memory of the GPU on either side is reported as such; one that would not end within --limit seconds of the start is left out.
MFU is ztrain's (docs/operations.md); PyTorch's is that over the ratio, because both train the same model. A case without a
ratio has failed. This needs a Python with torch and transformers.
"""
import argparse
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WARM_UP = 5
EXIT_DEVICE = 5                 # ztrain's code, also for too little memory
NO_FIT = "does not fit: "

GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 4096, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {"model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
         "rope_theta": 500000.0, "hidden_act": "silu", "initializer_range": 0.02}
MODELS = {
    "gpt2-124m": {**GPT2, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt2-1.5b": {**GPT2, "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "llama-1b": {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True},
    # 8B takes 18 bytes a parameter, more than one GPU has: half as many of the same layers
    "llama-8b-half": {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 16,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
}
# model, length, micro batch
CASES = [("gpt2-124m", 1024, 32), ("llama-1b", 1024, 16), ("gpt2-1.5b", 1024, 8), ("llama-8b-half", 4096, 2),
         ("llama-1b", 4096, 4), ("gpt2-124m", 4096, 8), ("gpt2-1.5b", 4096, 2), ("llama-8b-half", 1024, 8)]


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

def ztrain_turn(arguments, top, name, length, batch):
    """Step seconds, device bytes, MFU or None, or why not."""
    folder = f"{top}/run"
    shutil.rmtree(folder, ignore_errors=True)
    settings = {"run.dir": top, "run.name": "run", "model.config": f"{top}/{name}.json", "data.train": f"{top}/tokens",
                "data.seq_length": length, "train.device": "cuda", "train.max_steps": 1000000, "train_batch_size": batch,
                "bf16.enabled": "true", "optimizer.params.lr": 1e-5, "gradient_clipping": 1.0, "steps_per_print": 1000}
    with open(f"{top}/spec.yaml", "w", encoding="utf-8") as f:
        f.write("optimizer:\n  type: AdamW\n")
    line = [arguments.ztrain, "--config", f"{top}/spec.yaml"]
    for key, value in settings.items():
        line += ["--set", f"{key}={value}"]
    with open(f"{arguments.out}/bench-{name}-{length}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
    rows, started, first = [], time.monotonic(), None
    try:
        while first is None or time.monotonic() - first < arguments.seconds:
            if process.poll() is not None:
                with open(log.name, encoding="utf-8", errors="replace") as f:
                    said = (f.read().strip().splitlines() or ["it printed nothing"])[-1][:200]
                return None, None, None, (NO_FIT if process.returncode == EXIT_DEVICE and "GiB" in said else "") + said
            if time.monotonic() - started > arguments.seconds + 90:
                return None, None, None, "no step within 90 s"
            time.sleep(0.2)
            try:
                with open(f"{folder}/metrics.jsonl", encoding="utf-8") as f:
                    rows = [json.loads(text) for text in f.read().split("\n")[:-1]]
            except FileNotFoundError:
                continue
            if first is None and len(rows) > WARM_UP:
                first = time.monotonic()
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    steps = [row for row in rows if "loss" in row][WARM_UP:]
    shares = [row["mfu"] for row in steps if row["mfu"] is not None]
    seconds = [row["seconds"]["step"] for row in steps]
    return seconds, steps[-1]["memory_bytes"]["device"], statistics.median(shares) if shares else None, None


# --- PyTorch (a separate process, so that its memory is gone when ztrain's turn comes) --------------------------------

def torch_turn(arguments, top, name, length, batch):
    line = [sys.executable, os.path.abspath(__file__), "--peer", f"{top}/{name}.json", str(length), str(batch),
            "--seconds", str(arguments.seconds)]
    limit = arguments.seconds + 120
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None, None, None, f"no answer within {limit:.0f} s"
    for text in done.stdout.splitlines():
        if text.startswith("{\"seconds\""):
            answer = json.loads(text)
            return answer["seconds"], answer["memory"], None, None
    return None, None, None, (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:200]


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

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    taken, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        for _ in range(4):
            step()
        torch.cuda.synchronize()
        taken.append((time.monotonic() - start) / 4)
    print(json.dumps({"seconds": taken, "memory": torch.cuda.max_memory_allocated()}), flush=True)


# --- the table --------------------------------------------------------------------------------------------------------

def case(arguments, top, name, length, batch):
    config = MODELS[name]
    with open(f"{top}/{name}.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    sides = {"ztrain": ztrain_turn, "torch": torch_turn}
    rates, memory, ratios, shares = {side: [] for side in sides}, {}, [], []
    for _ in range(arguments.turns):
        medians = {}
        for side, turn in sides.items():
            seconds, size, share, why = turn(arguments, top, name, length, batch)
            if why:
                print(f"{name:<13} T={length:<5} B={batch:<3} {side}: {why}", flush=True)
                if side == "ztrain":
                    return why.startswith(NO_FIT)
                continue
            medians[side] = batch * length / statistics.median(seconds)
            rates[side].append(medians[side])
            memory[side] = size
            shares += [] if share is None else [share]
        if len(medians) == 2:
            ratios.append(medians["ztrain"] / medians["torch"])
    text = f"{name:<13} T={length:<5} B={batch:<3}"
    ours = statistics.median(rates["ztrain"])
    for side in sides:
        if rates[side]:
            rate = statistics.median(rates[side])
            share = f"MFU {100 * statistics.median(shares) * rate / ours:5.1f} %" if shares else "MFU unknown"
            text += f" {side} {rate:9.0f} tokens/s {share} {memory[side] / 2**30:6.1f} GiB "
    print(text + (f" ratio {statistics.median(ratios):.2f}" if ratios else ""), flush=True)
    return bool(ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default="build/ztrain")
    parser.add_argument("--case", default="")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--out", default=".", help="folder of ztrain's logs")
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments.peer[0], int(arguments.peer[1]), int(arguments.peer[2]), arguments.seconds)
        return
    arguments.ztrain = os.path.abspath(arguments.ztrain)
    if not any(arguments.case in f"{name}-{length}" for name, length, _ in CASES):
        parser.error(f"no case is named like '{arguments.case}'")
    top = tempfile.mkdtemp(prefix="ztrain-gpu-bench-")
    passed = failed = 0
    try:
        write_tokens(f"{top}/tokens", 1 << 26, 50000)
        longest, end = 0, time.monotonic() + arguments.limit
        for name, length, batch in CASES:
            if arguments.case not in f"{name}-{length}":
                continue
            started = time.monotonic()
            if started + longest > end:
                print(f"{name:<13} T={length:<5} B={batch:<3} left out: no time left", flush=True)
                continue
            good = case(arguments, top, name, length, batch)
            passed, failed = passed + good, failed + (not good)
            longest = max(longest, time.monotonic() - started)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
