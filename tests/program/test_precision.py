# SPDX-License-Identifier: Apache-2.0
"""Gradients and states in other types than fp32: what a user sets, resumes and loads."""
import os

import pytest

from harness import LLAMA, USAGE, plan_bytes

STATES = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
BASE = {"model": {"config": LLAMA}, "train": {"epochs": 2}}


def weights(folder, name):
    folder.ztrain("export", folder.run_folder(name), "--out", folder.at("hf-" + name), "--dtype", "fp32")
    with open(folder.at("hf-" + name, "model.safetensors"), "rb") as file:
        return file.read()


GEMMA4 = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 24, "intermediate_size": 6, "head_dim": 8,
          "num_attention_heads": 4, "num_hidden_layers": 4, "num_key_value_heads": 2, "num_kv_shared_layers": 0, "vocab_size": 257,
          "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 257, "sliding_window": 5, "max_position_embeddings": 128,
          "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"], "tie_word_embeddings": True,
          "per_layer_config": {"2": {"head_dim": 12}, "3": {"head_dim": 12}}, "rms_norm_eps": 0.01, "use_double_wide_mlp": False,
          "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000.0, "rope_type": "proportional"},
                              "sliding_attention": {"rope_theta": 50.0, "rope_type": "default"}}}


@pytest.mark.parametrize("config", [LLAMA, GEMMA4], ids=["llama", "gemma4"])
def test_stages_send_the_same_bf16(folder, config):
    """Stages 2 and 3 send what products write. Gemma 4's layers differ: a scalar, which is not trained, lies where others have a norm."""
    runs = []
    for stage in range(4):
        folder.train({"model": {"config": config}, "train": {"max_steps": 4, "epochs": None}, "bf16": {"enabled": True},
                      "communication_data_type": "bf16", "gradient_accumulation_steps": 1, "train_batch_size": None,
                      "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}, f"run-{stage}", ranks=2)
        runs.append((folder.metrics(f"run-{stage}").losses, weights(folder, f"run-{stage}")))
    assert all(other == runs[0] for other in runs[1:])


def test_states_in_bf16_resume_bit_for_bit(folder):
    """Stochastic rounding is keyed by the step, and a checkpoint holds the rounded values: they are not rounded again."""
    spec = {**BASE, **STATES, "zero_optimization": {"stage": 3}}
    folder.train(spec, "whole", ranks=2)
    steps = len(folder.metrics("whole").steps)
    folder.train(spec, "cut", ranks=2, sets=[f"train.max_steps={steps // 2}"])
    folder.train(spec, "cut", ranks=2, more=["--resume", folder.run_folder("cut")])
    assert folder.metrics("cut").losses == folder.metrics("whole").losses
    assert weights(folder, "cut") == weights(folder, "whole")


def test_states_in_bf16_load_in_other_modes(folder):
    folder.train({**BASE, **STATES}, "narrow", sets=["train.max_steps=2"])
    done = folder.train({**BASE, "bf16": {"enabled": True}}, "narrow", sets=["train.max_steps=4"],
                        more=["--resume", folder.run_folder("narrow")])
    assert "bf16_optimizer_states" in done.err + done.out  # a notice
    folder.train({**BASE, **STATES}, "narrow", sets=["train.max_steps=6"], more=["--resume", folder.run_folder("narrow")])
    assert len(folder.metrics("narrow").steps) == 6


ACCUMULATORS = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}


def places(folder):
    """Sections of offload: in host memory, on a disk, and mixed."""
    os.makedirs(folder.at("disk"), exist_ok=True)
    host, disk = {"device": "cpu"}, {"device": "nvme", "nvme_path": folder.at("disk")}
    small = {"sub_group_size": 2048}
    return {"host": {"offload_optimizer": host}, "both on disk": {"offload_optimizer": disk, "offload_param": {**disk, "max_in_cpu": 0}, **small},
            "disk and host": {"offload_optimizer": disk, "offload_param": host, **small}, "parameters on disk": {"offload_param": {**disk, "max_in_cpu": 0}}}


@pytest.mark.parametrize("ranks, stage, precision, names", [
    (1, 2, ACCUMULATORS, ["host"]), (2, 3, STATES, ["both on disk"]),
    pytest.param(1, 3, STATES, ["host", "both on disk", "disk and host", "parameters on disk"], marks=pytest.mark.long),
    pytest.param(4, 3, ACCUMULATORS, ["host", "both on disk", "disk and host", "parameters on disk"], marks=pytest.mark.long),
], ids=["accumulators", "states-2-ranks", "states-everywhere", "accumulators-everywhere"])
def test_offload_changes_no_bit(folder, monkeypatch, ranks, stage, precision, names):
    """With accumulation, evaluations, an interruption, a resume with offload, and one at another place."""
    monkeypatch.setenv("ZTRAIN_CPU_BF16", "widen")
    spec = {**BASE, **precision, "gradient_accumulation_steps": 3, "zero_optimization": {"stage": stage},
            "train": {"epochs": 2, "eval_interval_steps": 2}, "checkpoint": {"interval_steps": 2}}
    folder.train(spec, "whole", ranks=ranks)
    expected = folder.metrics("whole").numbers(), weights(folder, "whole")
    for i, name in enumerate(names):
        away = {**spec, "zero_optimization": {"stage": stage, **places(folder)[name]}}
        run = f"away-{i}"
        folder.train(away, run, ranks=ranks, sets=["train.max_steps=2", "train.epochs=null"])
        folder.train(away, run, ranks=ranks, more=["--resume", folder.run_folder(run)])
        assert (folder.metrics(run).numbers(), weights(folder, run)) == expected, name
        first = os.path.join(folder.run_folder(run), "checkpoints", folder.checkpoints(run)[0])
        folder.train(spec, f"back-{i}", ranks=ranks, more=["--resume", first])
        assert weights(folder, f"back-{i}") == expected[1], name
    assert os.listdir(folder.at("disk")) == []


def test_the_plan_of_offload_has_the_bytes(folder):
    """8 bytes a parameter in bf16: 2 of parameters stay, 2 + 2 + 2 of states and 2 of gradients are on the host or disk."""
    for name in ("host", "both on disk"):
        zero = {"stage": 3, **places(folder)[name], "sub_group_size": 2048}
        done = folder.ztrain("plan", "--bytes", "--config", folder.spec({**BASE, **STATES, "zero_optimization": zero}))
        device, host, disk = plan_bytes(done.out).values()
        disk = disk["total"]
        assert device["optimizer"] == device["gradients"] == 0, done
        if name == "host":
            assert host["optimizer"] == 3 * host["gradients"] == 3 * device["parameters"] and disk == 0, done
        else:
            assert device["parameters"] == 0 and host["optimizer"] <= 4 * 3 * 4096 + 4096 + 128 and disk > 0, done


def test_the_plan_names_the_types(folder):
    spec = folder.spec({**BASE, **STATES, "communication_data_type": "bf16"})
    plan = folder.ztrain("plan", "--config", spec, "--world", 2)
    text = plan.out + plan.err
    assert "stochastic rounding" in text and "accumulated in bf16" in text and "reduced in bf16" in text


@pytest.mark.parametrize("changes, words", [
    ({"bf16": {"bf16_master_weights_and_grads": True}}, ["needs bf16"]),
    ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, ["requires bf16_master_weights_and_grads"]),
    ({"data_types": {"grad_accum_dtype": "fp16"}}, ["overflow in fp16"]),
], ids=["without-bf16", "moments-alone", "fp16"])
def test_refused(folder, changes, words):
    done = folder.train({**BASE, **changes}, expect=USAGE)
    assert all(word in done.err for word in words), done


@pytest.mark.long
def test_loss_curves_stay_together(folder):
    """Over 150 steps the mean loss of the last 30 is within 2 % of that with fp32 states (docs/performance.md)."""
    folder.data(150 * 12)
    folder.data(10, seed=2, name="validation")
    spec = {**BASE, "train": {"epochs": 1}, "bf16": {"enabled": True}, "gradient_accumulation_steps": 2}
    modes = {
        "fp32": {},
        "accumulators": {"data_types": {"grad_accum_dtype": "bf16"}},
        "master": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        "moments": STATES,
    }
    means = {}
    for name, changes in modes.items():
        folder.train({**spec, **changes}, name)
        losses = list(folder.metrics(name).losses)
        assert len(losses) == 150
        means[name] = sum(losses[-30:]) / 30
    assert len(set(means.values())) == len(modes)  # they do round
    for name, mean in means.items():
        assert abs(mean / means["fp32"] - 1) < 0.02, means


def test_logits_follow_the_run_unless_fp32_is_asked_for(folder):
    """In bf16 they round otherwise than in fp32, by little; a checkpoint of one continues with the other, and it is told."""
    spec = {**BASE, "bf16": {"enabled": True}, "train": {"max_steps": 4}}
    for name, dtype in ("own", "auto"), ("named", "bf16"), ("wide", "fp32"):
        folder.train(spec, name, sets=[f"train.logits_dtype={dtype}"])
    own, named, wide = (folder.metrics(name).losses for name in ("own", "named", "wide"))
    assert own == named and own != wide and own == pytest.approx(wide, abs=0.01)
    done = folder.train(spec, "wide", sets=["train.max_steps=5"], more=["--resume", folder.run_folder("wide")])
    assert "train.logits_dtype" in done.err + done.out
