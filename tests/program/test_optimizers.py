# SPDX-License-Identifier: Apache-2.0
"""Optimizers other than AdamW: the losses of 50 steps against other implementations, stages, resume, offload, checkpoints."""
import json
import os

import pytest

from harness import ROOT, USAGE, plan_bytes

with open(os.path.join(ROOT, "tests", "golden", "optimizers.json"), encoding="utf-8") as file:
    GOLDEN = json.load(file)["cases"]
NAMES = [case["name"] for case in GOLDEN]
MOMENTUM = {"optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}}}
LION = {"optimizer": {"type": "Lion", "params": {"lr": 1e-3, "weight_decay": 0.1}}}
MUON = {"optimizer": {"type": "Muon", "params": {"lr": 1e-3, "muon_lr": 0.01, "weight_decay": 0.1}}}


def golden_run(folder, case, name, ranks=1, stage=0, more=()):
    """The losses of 50 steps of a golden case."""
    model = os.path.join(ROOT, "tests", "golden", case.get("case", "llama"))
    sets = [f"run.dir={folder.at('runs')}", f"run.name={name}", f"model.pretrained={model}", f"data.train={model}/train",
            "data.validation=null", "train.max_steps=50", "checkpoint.interval_steps=0",
            f"optimizer={json.dumps(case['optimizer'])}", 'scheduler={"type": "Constant"}', f"zero_optimization.stage={stage}", *more]
    arguments = ["--config", os.path.join(model, "run.yaml")]
    if ranks > 1:
        arguments += ["--local-gpus", ranks]
    for setting in sets:
        arguments += ["--set", setting]
    folder.ztrain(*arguments)
    return folder.metrics(name).losses


@pytest.mark.parametrize("case", GOLDEN, ids=NAMES)
def test_fifty_steps(folder, case):
    losses = golden_run(folder, case, "golden")
    assert len(losses) == len(case["loss"]) == 50
    assert max(abs(a - b) for a, b in zip(losses, case["loss"])) < 1e-5 + 4 * case["strays"]


@pytest.mark.parametrize("changes", [LION, MOMENTUM, MUON], ids=["Lion", "SGD", "Muon"])
def test_stages_and_resume(folder, changes):
    """Two micro-batches of one rank each: every stage has the same bits; so has a run that continues at another stage."""
    losses = []
    for stage in range(4):
        spec = {**changes, "zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 6}
        folder.train(spec, f"stage-{stage}", ranks=2)
        losses.append(folder.metrics(f"stage-{stage}").losses)
    assert losses[0] == losses[1] == losses[2] == losses[3]
    folder.train({**changes, "zero_optimization": {"stage": 1}}, "cut", ranks=2, sets=["train.max_steps=3"])
    folder.train({**changes, "zero_optimization": {"stage": 3}}, "cut", ranks=2, more=["--resume", folder.run_folder("cut")])
    assert folder.metrics("cut").losses == losses[0]


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_offload(folder, device):
    offload = {"device": device, **({"nvme_path": folder.at("disk")} if device == "nvme" else {})}
    if device == "nvme":
        os.mkdir(folder.at("disk"))
    folder.train({**LION, "zero_optimization": {"stage": 3}}, "device", ranks=2)
    folder.train({**LION, "zero_optimization": {"stage": 3, "offload_optimizer": offload}}, "host", ranks=2)
    assert folder.metrics("host").losses == folder.metrics("device").losses


def test_the_plan_and_the_checkpoint_have_what_the_optimizer_has(folder):
    """fp32: AdamW keeps two values a parameter beside the weights, Lion one, SGD without momentum none."""
    kept = {"AdamW": 2, "Lion": 1, "SGD": 0}
    optimizer_bytes, states = {}, {}
    for name, count in kept.items():
        spec = {"optimizer": {"type": name, "params": {"weight_decay": 0.0}}, "train": {"max_steps": 1}}
        plan = folder.ztrain("plan", "--bytes", "--config", folder.spec(spec, name)).out
        optimizer_bytes[name] = plan_bytes(plan)["device"]["optimizer"]
        folder.train(spec, name)
        with open(os.path.join(folder.latest(name), "manifest.json"), encoding="utf-8") as manifest:
            stored = json.load(manifest)
        states[name] = stored["states"]
        assert stored["format_version"] == (1 if count == 2 else 2)
        folder.ztrain("verify", folder.latest(name))
        assert f'optimizer.type: "{name}"' in folder.ztrain("inspect", folder.latest(name)).out
        folder.ztrain("export", folder.run_folder(name), "--out", folder.at(name + "-hf"))
    assert optimizer_bytes["AdamW"] == 2 * optimizer_bytes["Lion"] > 0 and optimizer_bytes["SGD"] == 0
    assert states == {"AdamW": ["master", "exp_avg", "exp_avg_sq"], "Lion": ["master", "exp_avg"], "SGD": ["master"]}


def test_muon_continues_with_another_number_of_ranks(folder):
    """Checkpoints hold second moments of all parameters, zeros for the matrices of the blocks, which keep none in memory."""
    folder.train({**MUON, "zero_optimization": {"stage": 1}}, "run", ranks=2, sets=["train.max_steps=3"])
    with open(os.path.join(folder.latest("run"), "manifest.json"), encoding="utf-8") as manifest:
        assert json.load(manifest)["states"] == ["master", "exp_avg", "exp_avg_sq"]
    folder.ztrain("verify", folder.latest("run"))
    folder.train({**MUON, "zero_optimization": {"stage": 3}}, "run", ranks=3, more=["--resume", folder.run_folder("run")])
    folder.train(MUON, "alone")
    pairs = list(zip(folder.metrics("run").losses, folder.metrics("alone").losses))
    assert len(pairs) > 3 and max(abs(a - b) for a, b in pairs) < 2e-3
    run_yaml = os.path.join(folder.run_folder("run"), "run.yaml")
    with open(run_yaml, encoding="utf-8") as file:
        assert "momentum: 0.95" in file.read()
    plans = {name: folder.ztrain("plan", "--bytes", "--config", folder.spec({"optimizer": optimizer}, name)).out
             for name, optimizer in (("muon", MUON["optimizer"]), ("adamw", {"type": "AdamW", "params": {"lr": 1e-3}}))}
    kept = {name: plan_bytes(plan)["device"]["optimizer"] for name, plan in plans.items()}
    assert 0 < kept["muon"] < kept["adamw"]


def test_another_optimizer_is_another_run(folder):
    folder.train(LION, "run", sets=["train.max_steps=2"])
    done = folder.train({}, "run", more=["--resume", folder.run_folder("run")], expect=USAGE)
    assert "'optimizer.type' was \"Lion\" in the checkpoint and is \"AdamW\" now" in done.err
    folder.train(MOMENTUM, "plain", sets=["train.max_steps=2"])
    done = folder.train(MOMENTUM, "plain", sets=["optimizer.params.momentum=0"],
                        more=["--resume", folder.run_folder("plain")], expect=USAGE)
    assert "2 kinds of state, the optimizer of this run 1; hint: set optimizer.type and its momentum" in done.err
