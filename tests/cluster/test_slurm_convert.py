# SPDX-License-Identifier: Apache-2.0
"""A run spec that `ztrain convert` made, under Slurm: an axolotl configuration becomes a job that trains to its end."""
import json
import os
import subprocess

from cluster_harness import TWO_BY_TWO, wait_for_end
from harness import FINISHED, SEQUENCE, ZTRAIN, to_yaml

AXOLOTL = {"base_model": "model", "datasets": [{"path": "tales.jsonl", "type": "completion"}], "sequence_len": SEQUENCE,
           "sample_packing": True, "micro_batch_size": 1, "gradient_accumulation_steps": 2, "num_epochs": 1, "max_steps": 6,
           "optimizer": "adamw_torch", "lr_scheduler": "cosine", "learning_rate": 3e-3, "warmup_ratio": 0.1, "bf16": False,
           "save_strategy": "epoch", "saves_per_epoch": 1, "output_dir": "runs/cook", "deepspeed": "zero2.json",
           "wandb_project": "kitchen", "seed": 7}
ZERO = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}, "bf16": {"enabled": "auto"}}


def make_model(folder):
    """A model folder: random weights that ztrain itself has exported."""
    spec = folder.spec({"train": {"epochs": None, "max_steps": 1}, "data": {"validation": None}}, name="seed")
    folder.ztrain("--config", spec)
    folder.ztrain("export", folder.run_folder("seed"), "--out", folder.at("model"))


def test_an_axolotl_configuration_becomes_a_job(folder):
    make_model(folder)
    os.mkdir(folder.at("data"))
    folder.data(24 * 20, name=os.path.join("data", "tales"))
    for name, content in (("cook.yaml", to_yaml(AXOLOTL) + "\n"), ("zero2.json", json.dumps(ZERO))):
        with open(folder.at(name), "w", encoding="utf-8") as f:
            f.write(content)
    done = subprocess.run([ZTRAIN, "convert", "cook.yaml", "--out", "cook-run.yaml"], cwd=folder.path, capture_output=True,
                          text=True, timeout=60, check=True)
    assert "note: data.train has data/tales, which this makes: ztrain-tokenize tales.jsonl" in done.stderr
    job = folder.sbatch(TWO_BY_TWO, "--config", folder.at("cook-run.yaml"))
    assert wait_for_end(folder, job) == ("COMPLETED", FINISHED), folder.job_output(job)[-3000:]
    steps = folder.metrics("cook").steps
    assert [row["step"] for row in steps] == list(range(1, 7)) and steps[-1]["loss"] < steps[0]["loss"]
    assert "start 1 on n[0-1]: 4 tasks, from the beginning" in folder.job_output(job)
    folder.wait_for_none()
