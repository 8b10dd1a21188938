# SPDX-License-Identifier: Apache-2.0
"""AdamW8bit: AdamW whose moments are in 8 bits. Stages, ranks, offload, resume, checkpoints, the plan. (That the bits are
torchao's: tests/unit/gpu/cpu/test_adam8.c.)"""
import json
import os

import pytest

from harness import LLAMA, USAGE, plan_bytes
from virtual_case import digest_of, numbers_of, prepared

ADAM8 = {"optimizer": {"type": "AdamW8bit", "params": {"lr": 3e-3, "weight_decay": 0.1}}}
# Tensors with blocks and, of one group, without; gate has no whole number of blocks, so up begins inside one
MODEL = {**LLAMA, "hidden_size": 64, "intermediate_size": 66, "num_hidden_layers": 2}


def spec_of(stage=0, **more):
    """Six virtual ranks: any number of ranks that divides it gives the same bits."""
    return {**ADAM8, "model": {"config": MODEL}, "zero_optimization": {"stage": stage, **more}, "train_batch_size": 12,
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
            "train": {"virtual_ranks": 6, "epochs": None, "max_steps": 4, "eval_interval_steps": 2},
            "checkpoint": {"interval_steps": 2, "keep_last": 0}}


def manifest_of(folder, name):
    with open(os.path.join(folder.latest(name), "manifest.json"), encoding="utf-8") as file:
        return json.load(file)


def bytes_of_checkpoint(folder, name):
    return sum(file["bytes"] for file in manifest_of(folder, name)["files"])


def test_stages_ranks_and_resume(folder):
    """One rank at stage 0 is what every other number of ranks and stage must equal, also where a run goes on."""
    prepared(folder)
    folder.train(spec_of(0), "one")
    numbers, digest = numbers_of(folder, "one"), digest_of(folder.latest("one"))
    assert "fp32 (master) and 8 bits (exp_avg, exp_avg_sq) in " in folder.ztrain("inspect", folder.latest("one")).out
    losses = folder.metrics("one").losses
    assert len(losses) == 4 and losses[-1] < losses[0]
    for stage, ranks in ((0, 2), (0, 3), (1, 3), (2, 2), (3, 3), (3, 6)):
        folder.train(spec_of(stage), f"{stage}-{ranks}", ranks=ranks)
        assert numbers_of(folder, f"{stage}-{ranks}") == numbers, (stage, ranks)
        assert digest_of(folder.latest(f"{stage}-{ranks}")) == digest, (stage, ranks)
    for name, first, then in (("up", (0, 1), (3, 3)), ("down", (3, 6), (0, 2)), ("across", (1, 3), (2, 2))):
        folder.train(spec_of(first[0]), name, ranks=first[1], sets=["train.max_steps=2"])
        folder.ztrain("verify", folder.latest(name))
        folder.train(spec_of(then[0]), name, ranks=then[1], more=["--resume", folder.run_folder(name)])
        assert numbers_of(folder, name) == numbers and digest_of(folder.latest(name)) == digest, name


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_offload(folder, device):
    """Host memory and files hold the same 8 bits; pieces of the slices end anywhere in them."""
    prepared(folder)
    os.mkdir(folder.at("disk"))
    offload = {"device": device, **({"nvme_path": folder.at("disk")} if device == "nvme" else {})}
    folder.train(spec_of(0), "device")
    numbers, digest = numbers_of(folder, "device"), digest_of(folder.latest("device"))
    for stage, ranks in ((3 if device == "nvme" else 2, 1), (3, 3)):
        name = f"{stage}-{ranks}"
        spec = spec_of(stage, offload_optimizer=offload, sub_group_size=2048)
        folder.train(spec, name, ranks=ranks, sets=["train.max_steps=2"])
        folder.train(spec, name, ranks=ranks, more=["--resume", folder.run_folder(name)])
        assert numbers_of(folder, name) == numbers and digest_of(folder.latest(name)) == digest, name


def test_of_an_adapter(folder):
    """A and B of q have blocks, those of v do not; what is frozen has no moments."""
    prepared(folder)
    peft = {"peft": {"peft_type": "LORA", "r": 64, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "o_proj"]}}
    folder.train({**spec_of(0), **peft}, "one")
    numbers, digest = numbers_of(folder, "one"), digest_of(folder.latest("one"))
    folder.train({**spec_of(3), **peft}, "three", ranks=3, sets=["train.max_steps=2"])
    folder.train({**spec_of(2), **peft}, "three", ranks=2, more=["--resume", folder.run_folder("three")])
    assert numbers_of(folder, "three") == numbers and digest_of(folder.latest("three")) == digest
    assert manifest_of(folder, "three")["format_version"] == 5
    folder.ztrain("verify", folder.latest("three"))
    folder.ztrain("export", folder.run_folder("three"), "--out", folder.at("exported"))


def test_beside_adamw(folder):
    """The losses are close to AdamW's, and the moments take a quarter: in the plan, in the run, in its checkpoint."""
    prepared(folder)
    model = {**MODEL, "intermediate_size": 96}
    losses, planned, stored = {}, {}, {}
    for name in ("AdamW", "AdamW8bit"):
        spec = {"optimizer": {"type": name, "params": {"lr": 3e-3, "weight_decay": 0.1}}, "model": {"config": model},
                "train": {"epochs": None, "max_steps": 20}, "checkpoint": {"compression_level": 0}}
        planned[name] = plan_bytes(folder.ztrain("plan", "--bytes", "--config", folder.spec(spec, name)).out)["device"]["optimizer"]
        folder.train(spec, name)
        losses[name], stored[name] = folder.metrics(name).losses, bytes_of_checkpoint(folder, name)
    assert losses["AdamW"] != losses["AdamW8bit"]
    assert max(abs(a - b) for a, b in zip(losses["AdamW"], losses["AdamW8bit"])) < 0.02
    manifest = manifest_of(folder, "AdamW8bit")
    numels = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in (tensor["shape"] for tensor in manifest["tensors"])]
    moments = 2 * sum(n * 65 / 64 if n >= 4096 and n % 256 == 0 else 4 * n for n in numels)
    assert 1 <= planned["AdamW8bit"] / moments < 1.1 and planned["AdamW"] >= 8 * sum(numels) > 2 * moments
    assert stored["AdamW"] - stored["AdamW8bit"] > 0.9 * (8 * sum(numels) - moments)
    assert manifest["format_version"] == 5 and manifest["moment_block"] == 256
    assert manifest["states"] == ["master", "exp_avg", "exp_avg_sq"]
    folder.ztrain("export", folder.run_folder("AdamW8bit"), "--out", folder.at("exported"))
    folder.ztrain("sample", folder.run_folder("AdamW8bit"), "--prompt-tokens", "1,2,3", "--max-tokens", "2")


def test_clipping_fp16_and_checked_steps(folder):
    """Skipped steps change no moment, and a step that is computed twice finds them as they were."""
    prepared(folder)
    checked = {"bf16": {"enabled": True}, "train": {"virtual_ranks": 6, "epochs": None, "max_steps": 4, "check_interval_steps": 2}}
    folder.train({**spec_of(1), **checked}, "checked", ranks=2)
    fp16 = {"fp16": {"enabled": True, "initial_scale_power": 23, "hysteresis": 1}}
    folder.train({**spec_of(0), **fp16}, "one")
    folder.train({**spec_of(3), **fp16}, "three", ranks=3)
    assert any(row.get("skipped") for row in folder.metrics("one").rows)
    assert numbers_of(folder, "one") == numbers_of(folder, "three")
    assert digest_of(folder.latest("one")) == digest_of(folder.latest("three"))


def test_what_does_not_fit_is_refused(folder):
    done = folder.train({**ADAM8, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16", expect=USAGE)
    assert "not supported yet with optimizer AdamW8bit; hint: remove the key, or use AdamW" in done.err
    folder.train(ADAM8, "run", sets=["train.max_steps=2"])
    done = folder.train({}, "run", more=["--resume", folder.run_folder("run")], expect=USAGE)
    assert "'optimizer.type' was \"AdamW8bit\" in the checkpoint and is \"AdamW\" now" in done.err
    for name in ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "ao_adamw_8bit"):
        done = folder.ztrain("plan", "--config", folder.spec({"optimizer": {"type": name}}, name))
        assert f"'optimizer.type' {name} is taken as AdamW8bit" in done.out, name
