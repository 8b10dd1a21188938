#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains LoRA adapters on the golden cases with ztrain and compares the results with those of PEFT.

    tests/golden/check_adapters.py                                  every adapter, stage 0, one rank, fp32
    tests/golden/check_adapters.py --stage 0,3 --ranks 1,2 --dtype fp32,bf16
    tests/golden/check_adapters.py --matrix --sample 8              stages 0-3 x ranks 1, 2, 3 x dtypes x modes, one in 8 of these
    tests/golden/check_adapters.py --mode gradients,merged          the gradients of one step; the weights of --merge
    tests/golden/check_adapters.py --adapter rslora --keep DIR      leaves the run in DIR

Each run starts from the adapter's values (initial_values), which a PEFT folder holds (model.adapter), on the frozen weights of
a golden case, and must agree in: the loss and gradient norm of 20 steps, every evaluation, the names, shapes and values of the
exported adapter. `gradients`: the same after one step of SGD, which tells the gradients. `merged`: the bytes of what
`ztrain export --merge` changes are those of PEFT's merge_and_unload. The other modes are those of check_golden.py.
make_adapters.py makes what is compared. Standard library only.
"""
import argparse
import functools
import hashlib
import itertools
import json
import math
import os
import random
import struct
import zlib

import check_golden as golden

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, RATE = 20, 0.004
SGD_RATE = 64.0  # the gradients are well above what float32 loses of the weights
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HEAD = "base_model.model.lm_head.weight"  # which PEFT's file has beside a tied embedding
STILL = ["optimizer.params.lr=0", "optimizer.params.weight_decay=0", "train.max_steps=1"]
OWN_MODES = {"gradients": (None, ["optimizer={{type: SGD, params: {{lr: 64.0, weight_decay: 0}}}}"]), "merged": (None, STILL)}
MODES = {**{name: mode for name, mode in golden.MODES.items() if name not in ("bf16-states-nvme", "shared-experts")},
         "block": (2, ["activation_checkpointing.policy=block"]), **OWN_MODES}


def initial_values(adapter, tensor, count):
    """The values with which the adapter's tensor starts. bf16 holds them exactly."""
    rng = random.Random(f"{adapter} {tensor}")
    middle = tensor.endswith(("norm.weight", "ln_f.weight"))  # of a norm: 1
    return [middle + rng.randrange(-64, 65) / 256 for _ in range(count)]


@functools.cache
def stored():
    """{name: case} of adapters.json, each with its whole adapter_config.json."""
    with open(f"{HERE}/adapters.json", encoding="utf-8") as f:
        content = json.load(f)
    return {case["name"]: case | {"config": content["config"] | case["config"]} for case in content["cases"]}


@functools.cache
def tensors_of_peft():
    return golden.read_safetensors(f"{HERE}/adapters.safetensors")


def reference(name, kind):
    """{tensor: (shape, values)}, kind: grad, final."""
    start = f"{name}/{kind}/"
    return {key.removeprefix(start): value for key, value in tensors_of_peft().items() if key.startswith(start)}


def write_safetensors(path, tensors):
    """{name: (shape, floats)} as F32."""
    header, blob = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def initial_tensors(name):
    return {tensor: (shape, initial_values(name, tensor, math.prod(shape)))
            for tensor, shape in stored()[name]["tensors"].items()}


def write_start(name, folder):
    """The PEFT folder that the adapter starts from."""
    os.makedirs(folder)
    with open(f"{folder}/{CONFIG}", "w", encoding="utf-8") as f:
        json.dump(stored()[name]["config"], f, indent=2)
    tensors = initial_tensors(name)
    if stored()[name]["config"]["ensure_weight_tying"]:
        tensors[HEAD] = tensors["base_model.model.model.embed_tokens.weight"]
    write_safetensors(f"{folder}/{WEIGHTS}", tensors)


def settings_of(name, case, out, start):
    """How a case is trained with an adapter. The base of 4 bits is quantized from the case's weights."""
    settings = [f"run.dir={out}", f"run.name={name}", f"model.pretrained={case}", f"model.adapter={start}",
                f"data.train={case}/train", f"data.validation={case}/validation", f"train.max_steps={STEPS}",
                f"checkpoint.interval_steps={STEPS}", f"optimizer.params.lr={RATE}"]
    if stored()[name].get("quantization_config"):
        settings.append(f"model.quantization_config={json.dumps(stored()[name]['quantization_config'])}")
    return settings


def train(arguments, name, stage, ranks, dtype, mode, out):
    """Trains and exports; returns the rows of metrics.jsonl."""
    case = os.path.join(HERE, stored()[name]["case"])
    write_start(name, f"{out}/start")
    settings = [*settings_of(name, case, out, f"{out}/start"), f"zero_optimization.stage={stage}"]
    if dtype != "fp32" and mode != "merged":
        settings.append(f"{dtype}.enabled=true")
    if dtype == "fp16" and mode != "merged":
        settings.append("fp16.initial_scale_power=12")  # no step overflows: the reference skips none
    if mode == "gradients":
        settings += ["gradient_clipping=0", "train.max_steps=1", "scheduler={type: Constant}"]
    command = [arguments.ztrain, "--config", f"{case}/run.yaml"]
    if ranks > 1:
        command += ["--local-gpus", str(ranks)]
        settings.append("train_micro_batch_size_per_gpu=1")
    for setting in settings + [setting.format(out=out) for setting in MODES[mode][1]] + arguments.set:
        command += ["--set", setting]
    golden.run(command)
    more = ["--merge", "--dtype", dtype] if mode == "merged" else []
    golden.run([arguments.ztrain, "export", f"{out}/{name}", "--out", f"{out}/{name}-peft", *more])
    with open(f"{out}/{name}/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def bounds(name, dtype, mode):
    """Those of check_golden.py; in 16 bits twice what PEFT's run in bf16 strays by, if that is more. The gradient of a
    delta rule's short keys is large, and rounds otherwise in fp32. With states in bf16 each update of the short B is rounded."""
    allowed, rounding = golden.bounds(stored()[name], dtype, mode), stored()[name]["rounding"]["bf16"]
    allowed["grad_norm"] = max(allowed["grad_norm"], 30 * stored()[name]["rounding"]["fp32"].get("norm", 0))
    if dtype != "fp32":
        allowed["grad_norm"] = max(allowed["grad_norm"], 2 * rounding["norm"] + 0.02)
        allowed["eval_loss"] = max(allowed["eval_loss"], 2 * rounding["eval"] + 0.005)
    if "bf16" in mode:  # qwen2: 0.06 to 0.2, by the CPU's instructions and the number of ranks
        allowed["grad_norm"] = max(allowed["grad_norm"], 0.4)
    return allowed


def compare_gradients(name, rows, tensors):
    """What the gradients got wrong, and how far they strayed in units of their length."""
    start, worst, wrong = initial_tensors(name), 0.0, []
    whole = math.sqrt(math.fsum(g * g for _, values in reference(name, "grad").values() for g in values))
    for tensor, (shape, gradient) in reference(name, "grad").items():
        if tensor not in tensors or tensors[tensor][0] != shape:
            wrong.append(f"the export lacks {tensor} {shape}")
            continue
        steps = [(a - b) / SGD_RATE for a, b in zip(start[tensor][1], tensors[tensor][1])]
        far = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(steps, gradient)))
        size = math.sqrt(math.fsum(g * g for g in gradient))
        error = far / max(size, 1e-3 * whole)
        if not error <= 1e-4:
            wrong.append(f"the gradient of {tensor} strays by {error:.1e} of its length")
        worst = max(worst, error)
    loss = next(row["loss"] for row in rows if "loss" in row)
    if not abs(loss - stored()[name]["loss"][0]) < 1e-5:
        wrong.append(f"loss {loss}, {stored()[name]['loss'][0]} expected")
    return wrong, {"gradients": worst}


def hashes_of(folder):
    """{tensor: beginning of its bytes' SHA-256} of a model's folder."""
    out = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            with open(f"{folder}/{file}", "rb") as f:
                header, blob = json.loads(f.read(struct.unpack("<Q", f.read(8))[0])), f.read()
            out |= {n: hashlib.sha256(blob[slice(*entry["data_offsets"])]).hexdigest()[:16]
                    for n, entry in header.items() if n != "__metadata__"}
    return out


def compare_merged(name, dtype, folder):
    if os.path.exists(f"{folder}/{CONFIG}"):
        return [f"a merged folder holds {CONFIG}"], {}
    found = hashes_of(folder)
    missing = sorted(tensor for tensor in stored()[name]["merged"][dtype] if tensor not in found)
    other = sorted(t for t, digest in stored()[name]["merged"][dtype].items() if found.get(t, digest) != digest)
    return ([f"{len(missing)} tensors are missing, {missing[0]} for one"] if missing else []) + \
        ([f"{len(other)} tensors have other bytes, {other[0]} for one"] if other else []), {}


def check(arguments, name, stage, ranks, dtype, mode, out):
    os.makedirs(f"{out}/disk")
    rows = train(arguments, name, stage, ranks, dtype, mode, out)
    if mode == "merged":
        return compare_merged(name, dtype, f"{out}/{name}-peft")
    with open(f"{out}/{name}-peft/{CONFIG}", encoding="utf-8") as f:
        config = json.load(f)
    wrong = [f"{key} is {config.get(key)} in {CONFIG}, {stored()[name]['config'][key]} expected"
             for key in ("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
             if config.get(key) != stored()[name]["config"][key]]
    tensors = golden.read_safetensors(f"{out}/{name}-peft/{WEIGHTS}")
    if stored()[name]["config"]["ensure_weight_tying"] and \
            tensors.pop(HEAD, None) != tensors["base_model.model.model.embed_tokens.weight"]:
        wrong.append(f"{HEAD} is not that of the embedding")
    if mode == "gradients":
        found, strayed = compare_gradients(name, rows, tensors)
    else:
        expected = stored()[name] | {"grad_norms_1": {}}
        found, strayed = golden.compare(expected, rows, tensors, reference(name, "final"),
                                        bounds(name, dtype, mode), arguments.steps)
    return wrong + found, strayed


def runs_of(arguments, names):
    """(adapter, dtype, stage, ranks, mode) of each run; of a sample those that their names and $ZTRAIN_SAMPLE_SEED choose."""
    for name, dtype, stage, ranks, mode in itertools.product(names, arguments.dtype, arguments.stage, arguments.ranks, arguments.mode):
        fixed = MODES[mode][0]
        if (fixed is not None and stage != arguments.stage[0]) or ("bf16" in mode and dtype != "bf16"):
            continue
        if mode == "gradients" and dtype != "fp32" or mode == "merged" and (ranks > 1 or not stored()[name]["merged"]):
            continue
        one = name, dtype, stage if fixed is None else fixed, ranks, mode
        if zlib.crc32((" ".join(map(str, one)) + golden.SAMPLE_SEED).encode()) % arguments.sample == 0:
            yield one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default="build/ztrain")
    parser.add_argument("--adapter", action="append", help="only this one (may be repeated)")
    parser.add_argument("--stage", type=golden.numbers, default=[0])
    parser.add_argument("--ranks", type=golden.numbers, default=[1])
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=["fp32"])
    parser.add_argument("--mode", type=lambda text: text.split(","), default=["plain"], help=", ".join(MODES))
    parser.add_argument("--matrix", action="store_true", help="every stage, ranks 1 to 3, dtype and mode")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one run in N")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="runs side by side")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="end after N steps (at least 4)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to ztrain")
    parser.add_argument("--keep", metavar="DIR", help="leave the runs here")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads take the cores from the other runs
    if arguments.matrix:
        arguments.stage, arguments.ranks, arguments.dtype = [0, 1, 2, 3], [1, 2, 3], ["fp32", "bf16", "fp16"]
        arguments.mode = list(MODES)
    if arguments.steps:
        arguments.set.append(f"train.max_steps={arguments.steps}")
    for what, values, known in (("adapter", arguments.adapter or [], stored()), ("mode", arguments.mode, MODES)):
        unknown = [value for value in values if value not in known]
        if unknown:
            parser.error(f"no {what} '{unknown[0]}'; hint: {', '.join(known)}")
    arguments.ztrain = os.path.abspath(arguments.ztrain)
    golden.run_all(check, arguments, runs_of(arguments, arguments.adapter or list(stored())))


if __name__ == "__main__":
    main()
