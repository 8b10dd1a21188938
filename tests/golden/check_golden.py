#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the golden cases with ztrain and compares the results with those of Hugging Face transformers.

    tests/golden/check_golden.py                                every case, stage 0, one rank, fp32
    tests/golden/check_golden.py --stage 0,3 --ranks 1,2,6 --dtype fp32,bf16
    tests/golden/check_golden.py --matrix                       stages 0-3 x ranks 1, 2, 3, 4, 6 x fp32, bf16, fp16
    tests/golden/check_golden.py --mode cpu,nvme --dtype bf16   with offload, at stage 3; the modes are below
    tests/golden/check_golden.py --modes --sample 8             every mode x ranks 1, 2 x fp32, bf16, fp16, one in 8 of these
    tests/golden/check_golden.py --case llama --steps 4         four steps only, whose numbers are compared: no final weights
    tests/golden/check_golden.py --case llama --keep DIR        leaves the runs in DIR

As many runs as there are cores go side by side; --jobs changes that. The lines come in the order of the runs.
A case is a folder with expected.json (tests/golden/README.md describes it). Each run trains from the
case's weights on the case's tokens, exports, and must agree in: the loss, gradient norm and learning rate of every
step, every evaluation, the names, shapes and values of the final weights. Standard library only.
"""
import argparse
import array
import collections
import concurrent.futures
import functools
import itertools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
RUN_SECONDS = 300
STEP_SAMPLES = 12
MOST_GUESSES = 1 << 16  # of a classifier's predictions: so many for 16 samples of two classes that may flip


def offload(**places):
    """Settings that put the optimizer's state and the parameters to 'cpu' or 'nvme', there in the run's folder."""
    made = []
    for what, device in places.items():
        made.append(f"zero_optimization.offload_{what}.device={device}")
        if device == "nvme":
            made.append(f"zero_optimization.offload_{what}.nvme_path={{out}}/disk")
    return made


# Of a case whose figures are older than a default.
SETTINGS = {"llama-mask": ["data.document_mask=false"]}
NARROW = ["bf16.bf16_master_weights_and_grads=true", "bf16.bf16_optimizer_states=true"]
TO_DISK = [*offload(optimizer="nvme", param="nvme"), "zero_optimization.offload_param.max_in_cpu=0"]
# name: stage (None: --stage), settings
SAMPLE_SEED = os.environ.get("ZTRAIN_SAMPLE_SEED", "")
MODES = {
    "plain": (None, []),
    "optimizer-cpu": (2, offload(optimizer="cpu")),
    "cpu": (3, offload(optimizer="cpu", param="cpu")),
    "nvme": (3, TO_DISK),
    **{policy: (0, [f"activation_checkpointing.policy={policy}"]) for policy in ("norms", "mlp", "attention")},
    "inputs-cpu": (0, ["activation_checkpointing.policy=block", "activation_checkpointing.cpu_checkpointing=true"]),
    "bf16-states": (1, NARROW),
    "bf16-states-nvme": (3, [*NARROW, *TO_DISK]),
    "shared-experts": (None, ["moe.expert_parallel_size=2"]),
}
# Cases, and the numbers of ranks, whose experts two groups of ranks can share.
SHARED = {"mixtral": [2, 4, 6], "olmoe": [2, 4, 6], "qwen3-moe": [2], "gpt-oss": [2], "granitemoe": [2], "granitemoe-aux": [2]}


def read_safetensors(path):
    """{name without "transformer.": (shape, values as floats)} of one file or of a folder's *.safetensors."""
    files = [path] if os.path.isfile(path) else sorted(
        os.path.join(path, name) for name in os.listdir(path) if name.endswith(".safetensors"))
    tensors = {}
    for file in files:
        with open(file, "rb") as f:
            (header_bytes,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(header_bytes))
            start = 8 + header_bytes
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                begin, end = entry["data_offsets"]
                f.seek(start + begin)
                tensors[name.removeprefix("transformer.")] = (entry["shape"], to_floats(f.read(end - begin), entry["dtype"]))
    return tensors


def to_floats(raw, dtype):
    if dtype == "F32":
        return array.array("f", raw)
    if dtype == "BF16":  # the upper half of a float
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        return array.array("f", bytes(wide))
    if dtype == "F16":
        return array.array("f", (value for (value,) in struct.iter_unpack("<e", raw)))
    raise ValueError(f"dtype {dtype} in a safetensors file")


def relative_error(values, reference):
    """|values - reference| / |reference|, in the 2-norm."""
    difference = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(values, reference)))
    norm = math.sqrt(math.fsum(b * b for b in reference))
    return difference / norm if norm else difference


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_SECONDS)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {' '.join(command)}\n{done.stdout[-2000:]}")


def expected_of(folder):
    with open(f"{folder}/expected.json", encoding="utf-8") as f:
        return json.load(f)


def micro_batch(folder):
    """Of a run of several ranks: an auxiliary loss is that of a micro-batch, so a case that has one keeps to its own."""
    return expected_of(folder).get("micro_batch", 1)


def train(ztrain, folder, out, stage, ranks, dtype, extra):
    """Trains one case and exports it. Returns the rows of metrics.jsonl and the exported tensors."""
    name = expected_of(folder)["case"]
    settings = [*SETTINGS.get(name, []), f"run.dir={out}", f"run.name={name}", f"model.pretrained={folder}", f"data.train={folder}/train",
                f"data.validation={folder}/validation", f"zero_optimization.stage={stage}"]
    if dtype != "fp32":
        settings.append(f"{dtype}.enabled=true")
    if dtype == "fp16":
        settings.append("fp16.initial_scale_power=12")  # no step overflows: the reference skips none
    command = [ztrain, "--config", f"{folder}/run.yaml"]
    if ranks > 1:
        command += ["--local-gpus", str(ranks)]
        settings.append(f"train_micro_batch_size_per_gpu={micro_batch(folder)}")
    for setting in settings + extra:
        command += ["--set", setting]
    run(command)
    with open(f"{out}/{name}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    run([ztrain, "export", f"{out}/{name}", "--out", f"{out}/{name}-hf", "--dtype", "fp32"])
    return rows, read_safetensors(f"{out}/{name}-hf")


def bounds(expected, dtype, mode="plain"):
    """How far a run may stray. bf16: twice what transformers' own bf16 strays by (with fp32 master weights); fp16, which
    is finer, no further. Nor may offload and recomputation; states in bf16, which round each update, only in norms, evaluations and weights."""
    rounding = expected["rounding"]["fp32" if dtype == "fp32" else "bf16"]
    if dtype == "fp32":
        return {"loss": 1e-5, "mean loss": 1e-5, "aux_loss": 1e-5, "eval_loss": 1e-5, "grad_norm": 5e-5, "lr": 1e-9, "gap": 1e-4,
                "final weights": max(1e-4, 10 * rounding["final"])}
    return {"loss": 2 * rounding["loss"] + 0.005, "mean loss": 2 * rounding["loss_mean"] + 0.002,
            "aux_loss": 2 * rounding.get("aux_loss", 0) + 0.005,
            "eval_loss": 2 * rounding["loss"] + (0.01 if "bf16" in mode else 0.005), "grad_norm": 0.1 if "bf16" in mode else 0.05, "lr": 1e-9, "gap": 2 * rounding.get("gap", 0) + 0.005,
            "final weights": 2 * rounding["final"] + (0.01 if "bf16" in mode else 0.005)}


def worst_of(values):
    """The largest; infinite if one is not a number."""
    return max((math.inf if math.isnan(value) else value for value in values), default=0.0)


def scores(guesses, labels, classes):
    """Accuracy and F1 (binary, of more than two classes macro) as scikit-learn has them."""
    pairs = collections.Counter(zip(guesses, labels))
    guessed, actual = collections.Counter(guesses), collections.Counter(labels)
    f1 = {c: 2 * pairs[c, c] / (guessed[c] + actual[c]) for c in range(classes) if guessed[c] + actual[c]}
    return sum(pairs[c, c] for c in f1) / len(labels), f1.get(1, 0.0) if classes == 2 else sum(f1.values()) / len(f1)


def possible_scores(logits, labels, gap):
    """{(accuracy, F1)} where each sample is predicted as any class whose logit is at most `gap` below the largest one."""
    rows = [[float(x) for x in row.split()] for row in logits]
    guesses = itertools.product(*([c for c, x in enumerate(row) if x >= max(row) - gap] for row in rows))
    return {scores(guess, labels, len(rows[0])) for guess in itertools.islice(guesses, MOST_GUESSES)}


def compare_predictions(expected, rows, gap, count):
    """A classifier's accuracy and F1 in the first `count` steps. Samples whose logits are nearly equal may be predicted
    otherwise, so both scores together must be among those that this makes possible."""
    evaluations = {row["step"]: row for row in rows if "eval_loss" in row}
    labels = [int(label) for label in expected.get("eval_labels", "").split()]
    wrong = []
    for step, logits in expected.get("eval_logits", {}).items():
        if int(step) > count:
            continue
        possible = possible_scores(logits, labels, gap)
        row = evaluations.get(int(step), {})
        have = [row.get(key, math.inf) for key in ("accuracy", "f1")]
        if not any(abs(have[0] - accuracy) < 1e-6 and abs(have[1] - f1) < 1e-6 for accuracy, f1 in possible):
            wrong.append(f"accuracy and F1 after step {step} are {have}, {expected['accuracy'][step]} and {expected['f1'][step]} "
                         f"expected, or one of {len(possible) - 1} other pairs")
    for row in evaluations.values() if "eval_samples" in expected else ():
        if row.get("eval_samples") != expected["eval_samples"]:
            wrong.append(f"{row.get('eval_samples')} samples evaluated, {expected['eval_samples']} expected")
    return wrong


def compare(expected, rows, tensors, reference, allowed, most_steps):
    """What a run got wrong, as a list of lines; and how far it strayed, as a dict. allowed: its bounds(). A run that ended early, after most_steps
    (0: none did), has other weights than the reference, but their names and shapes."""
    steps = {row["step"]: row for row in rows if "loss" in row}
    evaluations = {row["step"]: row["eval_loss"] for row in rows if "eval_loss" in row}
    count = min(len(expected["loss"]), most_steps or len(expected["loss"]))
    if sorted(steps) != list(range(1, count + 1)):
        return [f"steps {sorted(steps)} in metrics.jsonl, 1 to {count} expected"], {}
    skipped = [step for step, row in steps.items() if row.get("skipped")]
    if skipped:
        return [f"steps {skipped} were skipped"], {}

    def column(key):
        return [(steps[k + 1][key], expected[key][k]) for k in range(count)]

    losses = [abs(have - want) for have, want in column("loss")]
    strayed = {
        "loss": worst_of(losses),
        "mean loss": sum(losses) / count,
        "eval_loss": worst_of(abs(evaluations.get(int(step), math.inf) - want)
                              for step, want in expected["eval_loss"].items() if int(step) <= count),
        "grad_norm": worst_of(abs(have / want - 1) for have, want in column("grad_norm")),
        "lr": worst_of(abs(have - want) for have, want in column("lr")),
    }
    if "aux_loss" in expected:
        strayed["aux_loss"] = worst_of(abs(have - want) for have, want in column("aux_loss"))
    wrong = compare_predictions(expected, rows, allowed["gap"], count)
    missing = sorted(set(reference) - set(tensors))
    extra = sorted(set(tensors) - set(reference) - {"lm_head.weight"})  # a tied head may be written out
    if missing:
        wrong.append(f"the export lacks {', '.join(missing[:3])}")
    if extra:
        wrong.append(f"the export has {', '.join(extra[:3])} besides")
    # The true gradient of some biases is zero (a key's, for one): Adam turns rounding into steps there.
    quiet = {name.removeprefix("transformer.") for name, norm in expected["grad_norms_1"].items()
             if name.endswith("bias") and norm < 1e-2 * expected["grad_norm"][0]}
    worst, worst_error = "", 0.0
    for name in sorted(set(reference) & set(tensors)):
        if tensors[name][0] != reference[name][0]:
            wrong.append(f"{name} has shape {tensors[name][0]}, {reference[name][0]} expected")
            continue
        error = worst_of([relative_error(tensors[name][1], reference[name][1])]) / (4 if name in quiet else 1)
        if error > worst_error:
            worst, worst_error = name, error
    if count == len(expected["loss"]):
        strayed["final weights"] = worst_error
    for key, value in strayed.items():
        if not value <= allowed[key]:
            where = f" ({worst})" if key == "final weights" else ""
            wrong.append(f"{key} off by {value:.1e}, bound {allowed[key]:.1e}{where}")
    return wrong, strayed


def check(arguments, case, stage, ranks, dtype, mode, out):
    folder = os.path.join(arguments.cases, case)
    expected = expected_of(folder)
    if "nvme" in mode:
        os.makedirs(f"{out}/disk")
    extra = [setting.format(out=out) for setting in MODES[mode][1]] + arguments.set
    if arguments.steps:
        extra.append(f"train.max_steps={arguments.steps}")
    rows, tensors = train(arguments.ztrain, folder, out, stage, ranks, dtype, extra)
    reference = read_safetensors(f"{folder}/final.safetensors")
    return compare(expected, rows, tensors, reference, bounds(expected, dtype, mode), arguments.steps)


def numbers(text):
    return [int(part) for part in text.split(",")]


def runs_of(arguments, cases):
    """(case, dtype, stage, ranks, mode) of each run; of a sample those that their names and $ZTRAIN_SAMPLE_SEED choose."""
    for case, dtype, stage, ranks, mode in itertools.product(cases, arguments.dtype, arguments.stage, arguments.ranks, arguments.mode):
        if ranks > 1 and STEP_SAMPLES % (ranks * micro_batch(os.path.join(arguments.cases, case))) != 0:
            continue
        if mode == "shared-experts" and ranks not in SHARED.get(case, []):
            continue
        if case == "glm4-moe" and mode.startswith("bf16-states"):  # refused: a bias needs fp32
            continue
        if MODES[mode][0] is not None and (stage != arguments.stage[0] or ("bf16" in mode and dtype != "bf16")):
            continue
        one = case, dtype, stage if MODES[mode][0] is None else MODES[mode][0], ranks, mode
        if zlib.crc32((" ".join(map(str, one)) + SAMPLE_SEED).encode()) % arguments.sample == 0:
            yield one


def outcome(check_run, arguments, top, one):
    """Whether a run passed, and its line; check_run: check() of these cases."""
    case, dtype, stage, ranks, mode = one
    name = f"{case} {dtype} stage {stage} ranks {ranks}" + (f" {mode}" if mode != "plain" else "")
    out = os.path.join(top, name.replace(" ", "-"))
    try:
        wrong, strayed = check_run(arguments, case, stage, ranks, dtype, mode, out)
    except (OSError, ValueError, KeyError, RuntimeError, subprocess.TimeoutExpired) as error:
        wrong, strayed = [f"{type(error).__name__}: {error}"], {}
    if not arguments.keep:
        shutil.rmtree(out, ignore_errors=True)
    figures = " ".join(f"{key.replace(' ', '_')} {value:.0e}" for key, value in strayed.items())
    return not wrong, f"{'FAIL' if wrong else 'ok  '} {name}: {figures} {'; '.join(wrong)}".rstrip()


def run_all(check, arguments, runs):
    """Checks each run, --jobs at a time, in --keep or in a folder that goes, and ends the process: 1 if one has failed."""
    top = arguments.keep or tempfile.mkdtemp(prefix="ztrain-golden-")
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for good, line in pool.map(functools.partial(outcome, check, arguments, top), runs):
            passed, failed = passed + good, failed + (not good)
            print(line, flush=True)
    if not arguments.keep:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default="build/ztrain")
    parser.add_argument("--cases", default=HERE, help="folder of case folders")
    parser.add_argument("--case", action="append", help="only this one (may be repeated)")
    parser.add_argument("--stage", type=numbers, default=[0])
    parser.add_argument("--ranks", type=numbers, default=[1])
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=["fp32"])
    parser.add_argument("--matrix", action="store_true", help="every stage, rank count and dtype; experts shared, too")
    parser.add_argument("--mode", type=lambda text: text.split(","), default=["plain"],
                        help=f"places of the state, recomputation, precision of states: {', '.join(MODES)}")
    parser.add_argument("--modes", action="store_true", help="every mode but plain, on 1 and 2 ranks, and every dtype")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one run in N")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="runs side by side")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="end after N steps (at least 4, the first evaluation's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to ztrain")
    parser.add_argument("--keep", metavar="DIR", help="leave the runs here")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads take the cores from the other runs
    if arguments.matrix:
        arguments.stage, arguments.ranks, arguments.dtype = [0, 1, 2, 3], [1, 2, 3, 4, 6], ["fp32", "bf16", "fp16"]
        arguments.mode = ["plain", "shared-experts"]
    if arguments.modes:
        arguments.mode, arguments.ranks, arguments.dtype = list(MODES)[1:], [1, 2], ["fp32", "bf16", "fp16"]
    if arguments.steps and arguments.steps < 4:
        parser.error("--steps: at least 4")
    unknown = [mode for mode in arguments.mode if mode not in MODES]
    if unknown:
        parser.error(f"no mode '{unknown[0]}'; hint: {', '.join(MODES)}")
    arguments.ztrain, arguments.cases = os.path.abspath(arguments.ztrain), os.path.abspath(arguments.cases)
    cases = arguments.case or sorted(
        name for name in os.listdir(arguments.cases) if os.path.exists(f"{arguments.cases}/{name}/expected.json"))
    if not cases:
        sys.exit(f"check_golden.py: no cases in {arguments.cases}; hint: a case is a folder with expected.json")

    run_all(check, arguments, runs_of(arguments, cases))


if __name__ == "__main__":
    main()
