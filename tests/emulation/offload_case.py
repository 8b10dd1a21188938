# SPDX-License-Identifier: Apache-2.0
"""What the tests of offload on emulated GPUs share: a tiny training, the places of its state, and what must repeat."""
import os

import harness
from harness import LLAMA, ROOT

PRECISIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}},
              "bf16-grads": {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}},
              "bf16-states": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
              "fp16": {"fp16": {"enabled": True, "initial_scale_power": 19}},
              # the second step is the first one that is skipped
              "fp16-later": {"fp16": {"enabled": True, "initial_scale_power": 17, "loss_scale_window": 1}}}
SMALL = {**LLAMA, "num_hidden_layers": 3}


def program(monkeypatch):
    monkeypatch.setattr(harness, "ZTRAIN", os.path.join(ROOT, "build", "emulation", "ztrain"))
    monkeypatch.setattr(harness, "OPTIONS_OF_RUNS", ["--verbose"])
    monkeypatch.setenv("ZTRAIN_GEMM_CACHE", os.path.join(ROOT, "build", "emulation", "gemm-cache"))


def changes_of(ranks, precision, steps, accumulation=2):
    """Evaluations and checkpoints come after every second step."""
    return {"model": {"config": SMALL}, "data": {"seq_length": 8}, "train_batch_size": 4 * ranks,
            "gradient_accumulation_steps": accumulation, "zero_optimization": {"stage": 3}, **PRECISIONS[precision],
            "checkpoint": {"interval_steps": 2, "keep_last": 5},
            "train": {"epochs": None, "max_steps": steps, "eval_interval_steps": 2, "eval_batches": 1, "device": "cuda",
                      "cuda_graphs": False}}


def away(folder, optimizer=None, params=None, **zero):
    """Changes that put the optimizer's state and the parameters to 'cpu' or 'nvme'."""
    disk = {"nvme_path": folder.at("disk")}
    os.makedirs(disk["nvme_path"], exist_ok=True)
    places = {}
    if optimizer:
        places["offload_optimizer"] = {"device": optimizer, **(disk if optimizer == "nvme" else {})}
    if params:
        places["offload_param"] = {"device": params, **({**disk, "max_in_cpu": 0} if params == "nvme" else {})}
    return {"zero_optimization": harness.merged(places, zero)}


def environment(ranks, order="lazy", seed=5, **more):
    return {"ZTRAIN_EMULATION_GPUS": str(ranks), "ZTRAIN_EMULATION_ORDER": order, "ZTRAIN_EMULATION_SEED": str(seed), **more}


def weights(folder, name):
    folder.ztrain("export", folder.run_folder(name), "--out", folder.at(f"hf-{name}"), "--dtype", "fp32")
    with open(folder.at(f"hf-{name}", "model.safetensors"), "rb") as f:
        return f.read()
