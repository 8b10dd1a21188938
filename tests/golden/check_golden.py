#!/usr/bin/env python3
"""Trains the golden cases with ztrain and compares the results with those of Hugging Face transformers.

    tests/golden/check_golden.py                                every case, stage 0, one rank, fp32
    tests/golden/check_golden.py --stage 0,3 --ranks 1,2,6 --dtype fp32,bf16
    tests/golden/check_golden.py --matrix                       stages 0-3 x ranks 1, 2, 3, 4, 6 x fp32, bf16, fp16
    tests/golden/check_golden.py --case llama --keep DIR        leaves the runs in DIR

A case is a folder with expected.json (tests/golden/README.md describes it). Each run trains from the
case's weights on the case's tokens, exports, and must agree in: the loss, gradient norm and learning rate of every
step, every evaluation, the names, shapes and values of the final weights. Standard library only.
"""
import argparse
import array
import itertools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RUN_SECONDS = 300


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


def train(ztrain, folder, out, stage, ranks, dtype, extra):
    """Trains one case and exports it; returns the rows of metrics.jsonl and the exported tensors."""
    with open(f"{folder}/expected.json", encoding="utf-8") as f:
        name = json.load(f)["case"]
    settings = [f"run.dir={out}", f"run.name={name}", f"model.pretrained={folder}", f"data.train={folder}/train",
                f"data.validation={folder}/validation", f"zero_optimization.stage={stage}"]
    if dtype != "fp32":
        settings.append(f"{dtype}.enabled=true")
    command = [ztrain, "--config", f"{folder}/run.yaml"]
    if ranks > 1:
        command += ["--local-gpus", str(ranks)]
        settings.append("train_micro_batch_size_per_gpu=1")
    for setting in settings + extra:
        command += ["--set", setting]
    run(command)
    with open(f"{out}/{name}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    run([ztrain, "export", f"{out}/{name}", "--out", f"{out}/{name}-hf", "--dtype", "fp32"])
    return rows, read_safetensors(f"{out}/{name}-hf")


def bounds(expected, dtype):
    """How far a run may stray. bf16: twice what transformers' own bf16 strays by (with fp32 master weights); fp16, which
    is finer, no further."""
    rounding = expected["rounding"]["fp32" if dtype == "fp32" else "bf16"]
    if dtype == "fp32":
        return {"loss": 1e-5, "mean loss": 1e-5, "eval_loss": 1e-5, "grad_norm": 5e-5, "lr": 1e-9,
                "final weights": max(1e-4, 10 * rounding["final"])}
    return {"loss": 2 * rounding["loss"] + 0.005, "mean loss": 2 * rounding["loss_mean"] + 0.002,
            "eval_loss": 2 * rounding["loss"] + 0.005, "grad_norm": 0.05, "lr": 1e-9,
            "final weights": 2 * rounding["final"] + 0.005}


def worst_of(values):
    """The largest; infinite if one is not a number."""
    return max((math.inf if math.isnan(value) else value for value in values), default=0.0)


def compare(expected, rows, tensors, reference, dtype):
    """What a run got wrong, as a list of lines; and how far it strayed, as a dict."""
    steps = {row["step"]: row for row in rows if "loss" in row}
    evaluations = {row["step"]: row["eval_loss"] for row in rows if "eval_loss" in row}
    count = len(expected["loss"])
    if sorted(steps) != list(range(1, count + 1)):
        return [f"steps {sorted(steps)} in metrics.jsonl, 1 to {count} expected"], {}

    def column(key):
        return [(steps[k + 1][key], expected[key][k]) for k in range(count)]

    losses = [abs(have - want) for have, want in column("loss")]
    strayed = {
        "loss": worst_of(losses),
        "mean loss": sum(losses) / count,
        "eval_loss": worst_of(abs(evaluations.get(int(step), math.inf) - want)
                              for step, want in expected["eval_loss"].items()),
        "grad_norm": worst_of(abs(have / want - 1) for have, want in column("grad_norm")),
        "lr": worst_of(abs(have - want) for have, want in column("lr")),
    }
    wrong = []
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
    strayed["final weights"] = worst_error
    for key, bound in bounds(expected, dtype).items():
        if not strayed[key] <= bound:
            where = f" ({worst})" if key == "final weights" else ""
            wrong.append(f"{key} off by {strayed[key]:.1e}, bound {bound:.1e}{where}")
    return wrong, strayed


def check(arguments, case, stage, ranks, dtype, out):
    folder = os.path.join(arguments.cases, case)
    with open(f"{folder}/expected.json", encoding="utf-8") as f:
        expected = json.load(f)
    rows, tensors = train(arguments.ztrain, folder, out, stage, ranks, dtype, arguments.set)
    return compare(expected, rows, tensors, read_safetensors(f"{folder}/final.safetensors"), dtype)


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ztrain", default="build/ztrain")
    parser.add_argument("--cases", default=HERE, help="folder of case folders")
    parser.add_argument("--case", action="append", help="only this one (may be repeated)")
    parser.add_argument("--stage", type=numbers, default=[0])
    parser.add_argument("--ranks", type=numbers, default=[1])
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=["fp32"])
    parser.add_argument("--matrix", action="store_true", help="every stage, rank count and dtype")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to ztrain")
    parser.add_argument("--keep", metavar="DIR", help="leave the runs here")
    arguments = parser.parse_args()
    if arguments.matrix:
        arguments.stage, arguments.ranks, arguments.dtype = [0, 1, 2, 3], [1, 2, 3, 4, 6], ["fp32", "bf16", "fp16"]
    arguments.ztrain, arguments.cases = os.path.abspath(arguments.ztrain), os.path.abspath(arguments.cases)
    cases = arguments.case or sorted(
        name for name in os.listdir(arguments.cases) if os.path.exists(f"{arguments.cases}/{name}/expected.json"))
    if not cases:
        sys.exit(f"check_golden.py: no cases in {arguments.cases}; hint: a case is a folder with expected.json")

    top = arguments.keep or tempfile.mkdtemp(prefix="ztrain-golden-")
    passed = failed = 0
    for case, dtype, stage, ranks in itertools.product(cases, arguments.dtype, arguments.stage, arguments.ranks):
        name = f"{case} {dtype} stage {stage} ranks {ranks}"
        out = os.path.join(top, name.replace(" ", "-"))
        try:
            wrong, strayed = check(arguments, case, stage, ranks, dtype, out)
        except (OSError, ValueError, KeyError, RuntimeError, subprocess.TimeoutExpired) as error:
            wrong, strayed = [f"{type(error).__name__}: {error}"], {}
        passed, failed = passed + (not wrong), failed + bool(wrong)
        figures = " ".join(f"{key.replace(' ', '_')} {value:.0e}" for key, value in strayed.items())
        print(f"{'FAIL' if wrong else 'ok  '} {name}: {figures} {'; '.join(wrong)}".rstrip(), flush=True)
        if not arguments.keep:
            shutil.rmtree(out, ignore_errors=True)
    if not arguments.keep:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
