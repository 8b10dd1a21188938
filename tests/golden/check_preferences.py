#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains preferences/ with ztrain and compares the results with those of TRL, and of torch.

    tests/golden/check_preferences.py                               every case, stage 0, one rank, fp32
    tests/golden/check_preferences.py --stage 0,3 --ranks 1,2,3 --accumulation 1,3 --packing true,first_fit,false
    tests/golden/check_preferences.py --matrix --sample 8           stages 0-3 and all of these, one in 8
    tests/golden/check_preferences.py --reference file,scored       the reference from a file that is written here, or by ztrain score
    tests/golden/check_preferences.py --case kto --keep DIR         leaves the run in DIR

Each run must agree in: loss, gradient norm, rewards and log-probabilities of ten steps, those of an evaluation of the training data,
some final weights, and with `scored` what ztrain score writes. KTO's figures depend on micro-batch and ranks, so only those that
TRL's are there for are run. NLL is a mean over the tokens of a step (TRL: of a micro-batch, --nll-by). bf16: what TRL was run with.
make_preferences.py makes what is compared. Standard library only.
"""
import argparse
import functools
import itertools
import json
import math
import os
import struct
import zlib

import check_adapters as adapters
import check_golden as golden

PLACE = os.path.join(golden.HERE, "preferences")
BATCH = 6
MAGIC = b"ztlogps\x01"
LENGTH = 32  # data.seq_length of run.yaml
# How far a run may stray at least: what float32 loses on any machine. Twenty times what TRL's own run does, if that is more.
LEAST = {"loss": 1e-5, "grad_norm": 1e-4, "rewards": 3e-5, "logps": 2e-4, "kl": 2e-4, "final": 2e-4}
LEAST_BF16 = {"loss": 0.02, "grad_norm": 0.1, "rewards": 0.05, "logps": 0.5, "kl": 0.5, "final": 0.02}
METRICS = ("rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "kl")


@functools.cache
def stored():
    """figures.json, its cases by name."""
    with open(f"{PLACE}/figures.json", encoding="utf-8") as f:
        content = json.load(f)
    return content | {"cases": {case["name"]: {"preference": {}} | case for case in content["cases"]}}


@functools.cache
def weights():
    return golden.read_safetensors(f"{PLACE}/final.safetensors")


def reference_weights(name):
    return {key.removeprefix(f"{name}/"): value for key, value in weights().items() if key.startswith(f"{name}/")}


def expected_of(arguments, name, ranks, accumulation):
    """The figures of a run, or None where there are none."""
    case, micro = stored()["cases"][name], BATCH // (ranks * accumulation)
    if BATCH % (ranks * accumulation):
        return None
    loss = case["preference"].get("loss")
    if loss == "kto":
        return case if (micro, ranks) == (BATCH, 1) else case["by_batch"].get(f"{micro}x{ranks}")
    if "by_batch" in case and arguments.nll_by == "micro-batch":
        return case if micro == BATCH else case["by_batch"].get(f"{micro}x1")
    return case


def write_adapter(name, folder):
    """The PEFT folder that the case starts from."""
    os.makedirs(folder)
    config = stored()["cases"][name]["peft"] | {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "lora_dropout": 0.0}
    with open(f"{folder}/{adapters.CONFIG}", "w", encoding="utf-8") as f:
        json.dump(config, f)
    adapters.write_safetensors(f"{folder}/{adapters.WEIGHTS}", {
        tensor: (shape, adapters.initial_values(name, tensor, math.prod(shape)))
        for tensor, (shape, _) in reference_weights(name).items()})


def logps_of(case, micro):
    """What a file of log-probabilities holds: of the documents, and with KTO of the mismatched ones."""
    of_each = stored()["logps"][case["data"]][case["reference"]]
    return of_each["0"], of_each[str(micro)] if case["preference"]["loss"] == "kto" else []


def write_logps(path, case, micro):
    """The file as ztrain score writes it, of data that it does not name."""
    own, other = logps_of(case, micro)
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<QQii", 0, 0, *((micro, LENGTH) if other else (0, 0))) + struct.pack(f"<{len(own + other)}d", *own, *other))


def compare_logps(path, case, micro):
    own, other = logps_of(case, micro)
    with open(path, "rb") as f:
        content = f.read()
    if len(content) < 8 * len(own + other) or not content.startswith(MAGIC):
        return [f"{path} is no file of {len(own + other)} log-probabilities"]
    have = struct.unpack(f"<{len(own + other)}d", content[-8 * len(own + other):])
    worst = golden.worst_of(abs(a - b) for a, b in zip(have, own + other))
    return [] if worst < LEAST["logps"] else [f"log-probabilities off by {worst:.1e}, bound {LEAST['logps']:.1e}"]


def score(arguments, folder, data, path, *more):
    golden.run([arguments.ztrain, "score", folder, "--data", data, "--out", path, *more])


def link_data(name, out):
    """The shard in a folder where a file of log-probabilities may stand beside it; returns its prefix."""
    for end in ("bin", "idx", "mask", "labels"):
        os.symlink(f"{PLACE}/{name}.{end}", f"{out}/{name}.{end}")
    return f"{out}/{name}"


def settings_of(arguments, case, micro, how, out):
    """The run's settings, and what is wrong with the files that they name."""
    wrong, preference, data = [], dict(case["preference"]), link_data(case["data"], out)
    settings = [f"model.pretrained={PLACE}/{case['model']}", f"data.train={data}"]
    if case["reference"] in ("model", "reference") and preference:
        preference["reference"] = f"{PLACE}/{case['reference']}" if how == "folder" else f"{data}.logps"
        more = ["--mismatched", str(micro), "--set", f"data.seq_length={LENGTH}"] if preference["loss"] == "kto" else []
        if how == "file":
            write_logps(f"{data}.logps", case, micro)
        if how == "scored":
            score(arguments, f"{PLACE}/{case['reference']}", data, f"{data}.logps", *more)
            wrong = compare_logps(f"{data}.logps", case, micro)
    elif preference:
        preference["reference"] = case["reference"]
    if preference:
        settings.append(f"preference={json.dumps(preference)}")
    if "peft" in case:
        write_adapter(case["name"], f"{out}/start")
        settings.append(f"model.adapter={out}/start")
    if "distill" in case:
        score(arguments, f"{PLACE}/{case['reference']}", data, f"{data}.logps", "--top-k", str(case["top_k"]))
        settings.append(f"distill={json.dumps(case['distill'] | {'logps': f'{data}.logps'})}")
    else:
        settings.append(f"data.validation={data}")
    return settings + ([f"model.task={case['task']}"] if "task" in case else []), wrong


def train(arguments, case, stage, ranks, dtype, mode, out):
    """Trains and exports; returns the rows of metrics.jsonl, the tensors, and what is wrong with scored files."""
    accumulation, packing, how = mode
    os.makedirs(out)
    micro = BATCH // (ranks * accumulation)
    settings, wrong = settings_of(arguments, case, micro, how, out)
    settings += [f"run.dir={out}", "run.name=run", f"zero_optimization.stage={stage}",
                 f"train_micro_batch_size_per_gpu={micro}", f"data.packing={'false' if 'distill' in case else packing}"]
    if dtype != "fp32":
        settings.append(f"{dtype}.enabled=true")
    command = [arguments.ztrain, "--config", f"{PLACE}/run.yaml"]
    if ranks > 1:
        command += ["--local-gpus", str(ranks)]
    for setting in settings + arguments.set:
        command += ["--set", setting]
    golden.run(command)
    golden.run([arguments.ztrain, "export", f"{out}/run", "--out", f"{out}/export", *([] if "peft" in case else ["--dtype", "fp32"])])
    with open(f"{out}/run/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f], golden.read_safetensors(f"{out}/export"), wrong


def bound(case, dtype, key):
    kind = key.split("/")[0]
    strayed = case["rounding"][dtype].get(key, 0.0)
    if dtype == "fp32":
        least = LEAST[kind] * (20 if "distill" in case else 1)  # a teacher's log-probabilities have 16 bits
        return max(least, 20 * strayed)
    return LEAST_BF16[kind] + 3 * strayed


def value_of(row, key):
    """A row's number; metrics may be members of an object."""
    return row.get(key, row.get("preference", {}).get(key))


def distance(key, have, want):
    """Infinite where only one of them is there."""
    if have is None or want is None:
        return 0.0 if have is want else math.inf
    return abs(have / want - 1) if key == "grad_norm" else abs(have - want) / max(1.0, abs(want) if key == "loss" else 1.0)


def compare_metrics(case, dtype, rows, figures, where):
    """What is wrong in rows, one for each of the figures; and how far they stray. A reward model may have no such metrics."""
    wrong, strayed = [], {}
    for key in ("loss", "grad_norm", *METRICS):
        if key not in figures or ("task" in case and not any(value_of(row, key) is not None for row in rows)):
            continue
        strayed[key] = golden.worst_of(distance(key, value_of(row, key), want) for row, want in zip(rows, figures[key]))
        if not strayed[key] <= bound(case, dtype, key):
            wrong.append(f"{where}{key} off by {strayed[key]:.1e}, bound {bound(case, dtype, key):.1e}")
    for row, want, close in zip(rows, figures.get("rewards/accuracies", []), figures.get("close", [])):
        have, allowed = value_of(row, "rewards/accuracies"), close + (1e-6 if dtype == "fp32" else 0.34)
        if ("task" not in case or have is not None) and not distance("", have, want) <= allowed:
            wrong.append(f"{where}rewards/accuracies is {have}, {want} expected after step {row['step']}")
    return wrong, strayed


def compare_tensors(case, dtype, tensors):
    wrong, worst, worst_error = [], "", 0.0
    for name, (shape, values) in reference_weights(case["name"]).items():
        if name not in tensors or tensors[name][0] != shape:
            wrong.append(f"{name} of {shape} is not in the export, or has another shape")
            continue
        error = golden.worst_of([golden.relative_error(tensors[name][1], values)])
        if error >= worst_error:
            worst, worst_error = name, error
    if not worst_error <= bound(case, dtype, "final"):
        wrong.append(f"final weights off by {worst_error:.1e}, bound {bound(case, dtype, 'final'):.1e} ({worst})")
    return wrong, {"final": worst_error}


def check(arguments, name, stage, ranks, dtype, mode, out):
    case, mode = stored()["cases"][name], mode_of(mode)
    figures = expected_of(arguments, name, ranks, mode[0])
    rows, tensors, wrong = train(arguments, case, stage, ranks, dtype, mode, out)
    steps = [row for row in rows if "loss" in row]
    if [row["step"] for row in steps] != list(range(1, len(figures["loss"]) + 1)):
        return [f"steps {[row['step'] for row in steps]} in metrics.jsonl"], {}
    found, strayed = compare_metrics(case, dtype, steps, figures, "")
    wrong += found
    if figures.get("eval"):
        evaluations = [row | {"loss": row["eval_loss"]} for row in rows if "eval_loss" in row and row["step"] == len(steps)]
        if len(evaluations) != 1:
            wrong.append(f"{len(evaluations)} evaluations after the last step")
        found, far = compare_metrics(case, dtype, evaluations, figures["eval"], "evaluation's ")
        wrong, strayed = wrong + found, {key: max(value, far.get(key, 0.0)) for key, value in strayed.items()}
    found, far = compare_tensors(case, dtype, tensors) if figures is case else ([], {})
    return wrong + found, strayed | far


def mode_of(text):
    """(accumulation, packing, how the reference is given) of what stands in a run's name."""
    parts = dict(part.split("=") for part in text.split())
    return int(parts["accumulation"]), parts["packing"], parts["reference"]


def runs_of(arguments, names):
    """(case, dtype, stage, ranks, mode) of each run; of a sample those that their names and $ZTRAIN_SAMPLE_SEED choose."""
    for name, dtype, stage, ranks, accumulation, packing, how in itertools.product(
            names, arguments.dtype, arguments.stage, arguments.ranks, arguments.accumulation, arguments.packing, arguments.reference):
        case = stored()["cases"][name]
        if dtype not in case["rounding"] or not expected_of(arguments, name, ranks, accumulation):
            continue
        if not case["preference"] and packing != arguments.packing[0]:
            continue
        if (not case["preference"] or case["reference"] not in ("model", "reference")) and how != arguments.reference[0]:
            continue
        one = name, dtype, stage, ranks, f"accumulation={accumulation} packing={packing} reference={how}"
        if zlib.crc32((" ".join(map(str, one)) + golden.SAMPLE_SEED).encode()) % arguments.sample == 0:
            yield one


def words(text):
    return text.split(",")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default="build/ztrain")
    parser.add_argument("--case", action="append", help="only this one (may be repeated)")
    parser.add_argument("--stage", type=golden.numbers, default=[0])
    parser.add_argument("--ranks", type=golden.numbers, default=[1])
    parser.add_argument("--accumulation", type=golden.numbers, default=[1], help="micro-batches of a step")
    parser.add_argument("--packing", type=words, default=["true"], help="true, first_fit, false: the numbers are the same")
    parser.add_argument("--dtype", type=words, default=["fp32"], help="fp32, bf16")
    parser.add_argument("--reference", type=words, default=["folder"], help="how it is given: folder, file, scored")
    parser.add_argument("--nll-by", choices=["step", "micro-batch"], default="step", help="whose tokens NLL is the mean over")
    parser.add_argument("--matrix", action="store_true", help="all of these values, stages 0-3, ranks 1 to 3, accumulation 1 and 3")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one run in N")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="runs side by side")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to ztrain")
    parser.add_argument("--keep", metavar="DIR", help="leave the runs here")
    arguments = parser.parse_args()
    if arguments.matrix:
        arguments.stage, arguments.ranks, arguments.accumulation = [0, 1, 2, 3], [1, 2, 3], [1, 3]
        arguments.packing, arguments.dtype = ["true", "first_fit", "false"], ["fp32", "bf16"]
        arguments.reference = ["folder", "file", "scored"]
    for what, values, known in (("case", arguments.case or [], stored()["cases"]),
                                ("reference", arguments.reference, ["folder", "file", "scored"])):
        unknown = [value for value in values if value not in known]
        if unknown:
            parser.error(f"no {what} '{unknown[0]}'; hint: {', '.join(known)}")
    arguments.ztrain = os.path.abspath(arguments.ztrain)
    return arguments


def main():
    arguments = parse()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads take the cores from the other runs
    golden.run_all(check, arguments, runs_of(arguments, arguments.case or list(stored()["cases"])))


if __name__ == "__main__":
    main()
