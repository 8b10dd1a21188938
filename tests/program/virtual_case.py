# SPDX-License-Identifier: Apache-2.0
"""What the tests of train.virtual_ranks share: a tiny training, and what of it has the same bits at any number of ranks."""
import json
import os
import shutil

from harness import merged

WHOLE = bool(os.environ.get("ZTRAIN_TEST_WHOLE"))
DTYPES = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 12}}}
KEPT = ("step", "epoch", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens", "targets", "sources", "eval_loss",
        "eval_tokens", "eval_samples", "perplexity", "accuracy", "f1", "epoch_end", "train_loss")


def spec_of(virtual_ranks, accumulation=1, micro=1, dtype="fp32", steps=4):
    """Steps with evaluations and checkpoints between them. The model's units divide into no equal slices."""
    return {"train": {"virtual_ranks": virtual_ranks, "epochs": None, "max_steps": steps, "eval_interval_steps": 2},
            "train_batch_size": virtual_ranks * micro * accumulation, "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": accumulation, "checkpoint": {"interval_steps": 2, "keep_last": 0}, **DTYPES[dtype]}


def prepared(folder, samples=640):
    """Enough data for a few of the largest steps."""
    folder.data(samples)
    folder.data(29, seed=2, name="validation")
    return folder


def numbers_of(folder, name):
    """What the run reported of each step, evaluation and epoch: all but times, memory and places."""
    return [{key: row[key] for key in KEPT if key in row} for row in folder.metrics(name).rows if row.keys() & {"loss", "eval_loss"}]


def digest_of(checkpoint):
    """What a checkpoint holds, however many ranks wrote it: hashes of the parameters and the moments, and the place in the run."""
    with open(os.path.join(checkpoint, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    assert "parameters" in manifest["hashes"]
    return manifest["hashes"], manifest["position"]


def result_of(folder, name, checkpoints=None):
    """(numbers, {checkpoint: digest}) of a run; checkpoints: of which."""
    top = os.path.join(folder.run_folder(name), "checkpoints")
    return numbers_of(folder, name), {one: digest_of(os.path.join(top, one)) for one in checkpoints or sorted(folder.checkpoints(name))}


def trained(folder, changes, ranks, stage, **env):
    """The result of a run, whose folder is deleted."""
    folder.train(merged(changes, {"zero_optimization": {"stage": stage}}), ranks=ranks, env={"OMP_NUM_THREADS": "1", **env})
    result = result_of(folder, "run")
    shutil.rmtree(folder.run_folder("run"))
    assert len(result[0]) >= 4 and result[1]
    return result
