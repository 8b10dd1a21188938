# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: the same bits at every stage, on any number of ranks, offloaded, recomputed and resumed; what a run leaves of its
base and keeps in its checkpoints. tests/golden/check_adapters.py compares the numbers with PEFT's."""
import json
import os
import re
import shutil
import signal
import sys

import pytest

from harness import CHECKPOINT, DATA, GPT2, LLAMA, ROOT, USAGE, merged, plan_bytes, read_safetensors, wait_for_checkpoint, write_safetensors
from virtual_case import DTYPES, WHOLE, digest_of, numbers_of

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import check_adapters as peft_cases  # noqa: E402

# Matrices of every kind: an embedding, a fused group of which one is left out, another rank and scale, the head; and a whole norm.
PEFT = {"peft_type": "LORA", "r": 5, "lora_alpha": 7, "modules_to_save": ["layers.1.input_layernorm"],
        "target_modules": ["embed_tokens", "q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
        "rank_pattern": {"v_proj": 3}, "alpha_pattern": {"up_proj": 2}}
PLAIN = {"peft_type": "LORA", "r": 4}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")


def base_of(folder, config=LLAMA, name="base"):
    """A folder with random weights, the same ones each time."""
    if not os.path.exists(folder.at(name)):
        folder.train({"model": {"config": config}, "train": {"epochs": None, "max_steps": 1}}, f"made-{name}")
        folder.ztrain("export", folder.run_folder(f"made-{name}"), "--out", folder.at(name), "--dtype", "fp32")
        shutil.rmtree(folder.run_folder(f"made-{name}"))
    return folder.at(name)


def lora(folder, changes=None, adapter=None, config=LLAMA):
    """A run spec's changes: an adapter on the base, four steps of two micro-batches, an evaluation after the second."""
    spec = {"model": {"config": None, "pretrained": base_of(folder, config)}, "peft": PEFT if adapter is None else adapter,
            "train": {"epochs": None, "max_steps": 4, "eval_interval_steps": 2}, "gradient_accumulation_steps": 2,
            "optimizer": {"params": {"lr": 0.02}}}
    return merged(spec, changes or {})


def exported(folder, name="run", *options):
    """{file: bytes} of an export, whose folder is deleted."""
    out = folder.at(f"export-{name}")
    folder.ztrain("export", folder.run_folder(name), "--out", out, *options)
    found = {}
    for file in sorted(os.listdir(out)):
        with open(os.path.join(out, file), "rb") as f:
            found[file] = f.read()
    shutil.rmtree(out)
    return found


def weights(folder, name="run"):
    return exported(folder, name)[ADAPTER[1]]


def result(folder, changes, name, **more):
    folder.train(changes, name, **more)
    numbers = numbers_of(folder, name)
    assert len(numbers) >= 5 and numbers[0]["grad_norm"] > 0
    return numbers, weights(folder, name)


# ---- the same bits -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_stages_and_places_have_the_same_bits(folder, dtype, ranks):
    """With one micro-batch a step, as stages 2 and 3 add those of a step in another order."""
    places = [{"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3}, {"stage": 2, **OFFLOAD},
              {"stage": 3, "offload_param": {"device": "cpu"}, **OFFLOAD}]
    runs = [result(folder, lora(folder, {"zero_optimization": zero, "gradient_accumulation_steps": 1, **DTYPES[dtype]}), f"run-{i}",
                   ranks=ranks) for i, zero in enumerate(places)]
    assert all(other == runs[0] for other in runs[1:])


@pytest.mark.parametrize("config, adapter", [(LLAMA, PEFT), (GPT2, {**PLAIN, "target_modules": "all-linear", "lora_dropout": 0.3})],
                         ids=["llama", "gpt2"])
@pytest.mark.parametrize("stage", [1, 3])
def test_recomputation_changes_no_bit(folder, config, adapter, stage):
    runs = []
    for policy in ("none", "norms", "mlp", "attention", "block"):
        changes = lora(folder, {"activation_checkpointing": {"policy": policy}, "zero_optimization": {"stage": stage}}, adapter, config)
        runs.append(result(folder, changes, f"run-{policy}", ranks=2))
    assert all(other == runs[0] for other in runs[1:])


@pytest.mark.parametrize("adapter", [PEFT, {**PLAIN, "lora_dropout": 0.25}], ids=["targets", "dropout"])
def test_micro_batches_and_ranks_agree(folder, adapter):
    """Sums in another order, so not the same bits; masks of dropout follow the samples."""
    losses = []
    for ranks, micro in ((1, 12), (1, 3), (2, 2), (3, 1)):
        name = f"run-{ranks}-{micro}"
        folder.train(lora(folder, {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": None}, adapter), name,
                     ranks=ranks)
        losses.append(folder.metrics(name).losses)
    for other in losses[1:]:
        assert max(abs(a - b) for a, b in zip(losses[0], other)) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES if WHOLE else ["bf16"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_virtual_ranks_have_the_same_bits_on_any_number_of_ranks(folder, dtype, stage):
    found = []
    for ranks in (1, 2, 4):
        changes = lora(folder, {"train": {"virtual_ranks": 4}, "gradient_accumulation_steps": None, "train_batch_size": 8,
                                "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, **DTYPES[dtype]})
        folder.train(changes, f"run-{ranks}", ranks=ranks)
        found.append((numbers_of(folder, f"run-{ranks}"), digest_of(folder.latest(f"run-{ranks}"))[0], weights(folder, f"run-{ranks}")))
    assert all(other == found[0] for other in found[1:])


@pytest.mark.parametrize("dtype, before, after", [("fp32", (1, 0), (1, 3)), ("bf16", (2, 3), (2, 3)), ("fp16", (2, 1), (2, 2))])
def test_a_resumed_run_has_the_same_bits(folder, dtype, before, after):
    """before, after: ranks, stage."""
    adapter = {**PEFT, "lora_dropout": 0.1}
    changes = lora(folder, {"gradient_accumulation_steps": 1, **DTYPES[dtype]}, adapter)

    def at(place):
        return merged(changes, {"zero_optimization": {"stage": place[1]}})
    whole = result(folder, at(before), "whole", ranks=before[0])
    folder.train(at(before), "cut", ranks=before[0], sets=["train.max_steps=2"])
    folder.train(at(after), "cut", ranks=after[0], more=["--resume", folder.run_folder("cut")])
    assert (numbers_of(folder, "cut"), weights(folder, "cut")) == whole


def test_a_killed_run_has_the_same_bits(folder):
    changes = lora(folder, {"train": {"max_steps": 30}, "checkpoint": {"interval_steps": 2}, "zero_optimization": {"stage": 3}})
    whole = result(folder, changes, "whole", ranks=2)
    process = folder.start("--config", folder.spec(merged(changes, {"train": {"max_steps": 100000}}), "cut"), "--local-gpus", 2)
    wait_for_checkpoint(folder, process, name="cut")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    step = folder.whole_checkpoints("cut")[-1]
    if step < 30:
        folder.train(changes, "cut", ranks=2, more=["--resume", folder.run_folder("cut")])
    rows = [row for row in numbers_of(folder, "cut") if row["step"] <= 30]
    assert rows == whole[0]


# ---- the base ----------------------------------------------------------------------------------------------------------

def base_hash(folder, name="run"):
    with open(os.path.join(folder.latest(name), "manifest.json"), encoding="utf-8") as f:
        return json.load(f)["base"]["hash"]


@pytest.mark.parametrize("stage", [0, 3])
def test_the_base_stays_as_it_was(folder, stage):
    """After a step and after four, and for other adapters that train none of it."""
    whole = {**PEFT, "modules_to_save": []}
    changes = lora(folder, {"zero_optimization": {"stage": stage}})
    hashes = set()
    for name, steps, adapter in (("one", 1, whole), ("four", 4, whole), ("other", 2, PLAIN)):
        folder.train(merged(changes, {"peft": None}) | {"peft": adapter}, name, ranks=2, sets=[f"train.max_steps={steps}"])
        hashes.add(base_hash(folder, name))
    folder.train(lora(folder, {"model": {"pretrained": base_of(folder, merged(LLAMA, {"initializer_range": 0.11}), "else")}}), "else")
    assert len(hashes) == 1 and base_hash(folder, "else") not in hashes


def test_a_resume_on_another_base_is_refused(folder):
    folder.train(lora(folder), sets=["train.max_steps=2"])
    other = base_of(folder, merged(LLAMA, {"initializer_range": 0.11}), "else")
    done = folder.train(lora(folder, {"model": {"pretrained": other}}), more=["--resume", folder.run_folder()], expect=CHECKPOINT)
    assert "was trained on another base" in done.final_error, done
    os.rename(folder.at("base"), folder.at("kept"))
    os.rename(other, folder.at("base"))
    done = folder.train(lora(folder), more=["--resume", folder.run_folder()], expect=CHECKPOINT)
    assert "was trained on another base" in done.final_error, done
    shutil.rmtree(folder.at("base"))
    os.rename(folder.at("kept"), folder.at("base"))
    folder.train(lora(folder), more=["--resume", folder.run_folder()])


def test_a_base_of_another_name_goes_on(folder):
    changes = lora(folder)
    whole = result(folder, changes, "whole")
    folder.train(changes, "cut", sets=["train.max_steps=2"])
    shutil.move(folder.at("base"), folder.at("renamed"))
    folder.train(merged(changes, {"model": {"pretrained": folder.at("renamed")}}), "cut", more=["--resume", folder.run_folder("cut")])
    assert (numbers_of(folder, "cut"), weights(folder, "cut")) == whole


def test_checkpoints_do_not_hold_the_base(folder):
    def size(name):
        return sum(os.path.getsize(os.path.join(folder.latest(name), f)) for f in os.listdir(folder.latest(name)))
    wide = merged(LLAMA, {"hidden_size": 128, "intermediate_size": 384})
    changes = lora(folder, {"train": {"eval_interval_steps": 0, "max_steps": 1}}, PLAIN, wide)
    folder.train(changes, "lora")
    folder.train(merged(changes, {"peft": None}), "full")
    assert 0 < size("lora") < size("full") / 20


def test_a_plan_has_no_state_of_the_base(folder):
    """A and B of rank 4 on q and v of three blocks: 12 bytes of state and gradients each; the base 2 bytes in bf16."""
    base = base_of(folder)
    spec = folder.spec(lora(folder, {"bf16": {"enabled": True}}, PLAIN))
    bytes_of = plan_bytes(folder.ztrain("plan", "--bytes", "--config", spec).out)["device"]
    trained = 3 * 4 * (32 + 32 + 32 + 16)
    count = sum(len(raw) // 4 for _, _, raw in read_safetensors(os.path.join(base, "model.safetensors")).values())
    assert 12 * trained <= bytes_of["optimizer"] < 24 * trained
    assert 2 * count <= bytes_of["parameters"] < 2.2 * (count + trained) + 4096


# ---- the folder of an adapter ------------------------------------------------------------------------------------------

def test_fresh_adapters_begin_at_the_bases_loss(folder):
    """B is zero; A lies within 1/sqrt(in), and its values depend on run.seed."""
    folder.train(merged(lora(folder, {}, PLAIN), {"peft": None}), "base", sets=["train.max_steps=1"])
    folder.train(lora(folder, {}, PLAIN), "lora", sets=["train.max_steps=1", "optimizer.params.lr=0"])
    folder.train(lora(folder, {}, PLAIN), "seed", sets=["train.max_steps=1", "optimizer.params.lr=0", "run.seed=8"])
    assert folder.metrics("lora").losses == folder.metrics("base").losses
    assert weights(folder, "lora") != weights(folder, "seed")
    folder.ztrain("export", folder.run_folder("lora"), "--out", folder.at("adapter"))
    tensors = peft_cases.golden.read_safetensors(folder.at("adapter", ADAPTER[1]))
    name = "base_model.model.model.layers.{}.self_attn.{}.lora_{}.weight"
    assert set(tensors) == {name.format(i, q, x) for i in range(3) for q in ("q_proj", "v_proj") for x in "AB"}
    for key, (shape, values) in tensors.items():
        if "lora_B" in key:
            assert shape == [32 if "q_proj" in key else 16, 4] and set(values) == {0.0}
        else:
            assert shape == [4, 32] and max(map(abs, values)) <= 32 ** -0.5
            assert max(values) > 0.8 * 32 ** -0.5 and min(values) < -0.8 * 32 ** -0.5


def test_an_export_starts_another_run(folder):
    """model.adapter gives `peft` and the values; one step of a rate that changes nothing exports the same bytes."""
    folder.train(lora(folder))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("adapter"))
    again = lora(folder, {"model": {"adapter": folder.at("adapter")}, "peft": None})
    folder.train(again, "again", ranks=2, sets=["train.max_steps=1", "optimizer.params.lr=0", "zero_optimization.stage=3"])
    assert weights(folder, "again") == weights(folder)
    with open(folder.at("adapter", ADAPTER[0]), encoding="utf-8") as f:
        config = json.load(f)
    assert config["base_model_name_or_path"] == base_of(folder) and {key: config[key] for key in PEFT} == PEFT


def test_a_merged_folder_is_a_model(folder):
    """Its loss is that of base and adapter."""
    folder.train(lora(folder))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge", "--dtype", "fp32")
    assert not os.path.exists(folder.at("merged", ADAPTER[0]))
    folder.train(merged(lora(folder), {"model": {"pretrained": folder.at("merged")}, "peft": None}), "after",
                 sets=["train.max_steps=1", "optimizer.params.lr=0", "train.eval_interval_steps=1"])
    ours, theirs = (folder.metrics(name).evaluations[-1]["eval_loss"] for name in ("run", "after"))
    assert abs(ours - theirs) < 1e-5


def test_a_report_and_an_inspection_of_an_adapters_run(folder):
    folder.train(lora(folder, {}, PLAIN))
    assert "eval_loss" in folder.ztrain("report", folder.run_folder()).out
    said = folder.ztrain("inspect", folder.run_folder(), "--tensors").out
    assert said.count("lora_A.weight") == said.count("lora_B.weight") == 6 and "o_proj" not in said


def test_samples_come_from_base_and_adapter(folder):
    folder.train(lora(folder))
    folder.ztrain("export", folder.run_folder(), "--out", folder.at("merged"), "--merge", "--dtype", "fp32")
    said = [folder.ztrain("sample", place, "--prompt-tokens", "3,4,5", "--max-tokens", "12", "--device", "cpu", "--dtype", "fp32").out
            for place in (folder.run_folder(), folder.at("merged"), base_of(folder))]
    assert said[0] == said[1] != said[2]


# ---- what is refused ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("change, words", [
    ({"target_modules": ["q_porj"]}, "matches no module of the model; hint: its matrices are q_proj, k_proj"),
    ({"target_modules": "q_proj"}, "hint: a text is a regular expression for whole names, or all-linear; a list, such as [q_proj]"),
    ({"target_modules": ["input_layernorm"]}, "input_layernorm"),
    ({"use_dora": True}, "use_dora"),
    ({"peft_type": "IA3"}, "IA3"),
    ({"bias": "all"}, "bias"),
    ({"r": 0}, "'peft.r'"),
    ({"target_modules": "layers.(0"}, "layers.(0"),
    ({"layers_to_transform": [3]}, "matches no module"),
    ({"target_modules": "all-linear", "layers_to_transform": [1]}, "layers_to_transform"),
])
def test_what_cannot_be_is_refused_before_the_start(folder, change, words):
    done = folder.train(lora(folder, {}, {**PLAIN, **change}), more=["--dry-run"], expect=USAGE)
    assert words in done.err, done


def test_an_empty_section_trains_all_weights(folder):
    done = folder.train(sets=["train.max_steps=1", "peft="])
    assert "'peft' is empty, and all weights are trained; hint: peft: {}" in done.out and "of them trained" not in done.out


def test_a_name_without_a_module_is_said(folder):
    """PEFT ignores it. The first line says how much is trained."""
    done = folder.train(lora(folder, {}, {**PLAIN, "modules_to_save": ["lm_haed"]}), sets=["train.max_steps=1"])
    assert "'peft.modules_to_save': 'lm_haed' matches no module of this llama model, and has no effect" in done.out
    assert re.search(r": llama, \d+ parameters, \d+ of them trained\n", done.out), done.out


def adapter_folder(folder, change=None, tensors=None, leave_out=()):
    """A PEFT folder for the base: r 4 on q and v, changed."""
    os.makedirs(folder.at("adapter"))
    with open(folder.at("adapter", ADAPTER[0]), "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **(change or {})}, f)
    content = {}
    for i in range(3):
        for module, out in (("q_proj", 32), ("v_proj", 16)):
            start = f"base_model.model.model.layers.{i}.self_attn.{module}.lora_"
            content |= {f"{start}A.weight": ([4, 32], [0.01] * 128), f"{start}B.weight": ([out, 4], [0.01] * 4 * out)}
    content = {name: tensor for name, tensor in (content | (tensors or {})).items() if name not in leave_out}
    write_safetensors(folder.at("adapter", ADAPTER[1]), content)
    return folder.at("adapter")


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize("kind, code, words", [
    ({"leave_out": [FIRST]}, DATA, "q_proj.lora_A.weight"),
    ({"tensors": {FIRST: ([3, 32], [0.0] * 96)}}, DATA,
     "q_proj.lora_A.weight' has shape (3, 32), and the model asks for (4, 32); hint: the adapter is of another base, or r "),
    ({"tensors": {FIRST.replace("q_proj", "k_proj"): ([4, 32], [0.0] * 128)}}, DATA, "k_proj.lora_A.weight"),
    ({"change": {"use_dora": True}}, USAGE, "use_dora"),
    ({"change": {"peft_type": "VERA"}}, USAGE, "VERA, and ztrain has LORA only; hint: merge the adapter with PEFT (merge_and_unload)"),
    ({"change": {"peft_type": "P_TUNING"}}, USAGE, "P_TUNING, and ztrain has LORA only; hint: an adapter of peft_type LORA"),
], ids=["missing", "shape", "extra", "dora", "type", "prompt"])
def test_a_folder_that_does_not_fit_is_refused(folder, kind, code, words):
    place = adapter_folder(folder, **kind)
    done = folder.train(lora(folder, {"model": {"adapter": place}, "peft": None}), sets=["train.max_steps=1"], expect=code)
    assert words in done.err, done


def test_peft_beside_an_adapters_folder(folder):
    """Names have no order, as PEFT writes a set. A base of another name is a notice."""
    place = adapter_folder(folder, {"base_model_name_or_path": "org/other"})
    spec = lora(folder, {"model": {"adapter": place}, "peft": None})
    done = folder.train({**spec, "peft": {"target_modules": ["v_proj", "q_proj"]}}, sets=["train.max_steps=1"])
    assert "'model.adapter' was trained on 'org/other', and model.pretrained is" in done.out
    done = folder.train({**spec, "peft": {"target_modules": ["v_proj", "k_proj"]}}, expect=USAGE)
    assert "'peft.target_modules' is [\"v_proj\",\"k_proj\"], and [\"q_proj\",\"v_proj\"] in the config" in done.err


def test_a_run_needs_the_folder_that_it_began_with_no_more(folder):
    """Its run.yaml has what the folder said."""
    spec = lora(folder, {"model": {"adapter": adapter_folder(folder)}, "peft": None})
    folder.train(spec, sets=["train.max_steps=1"])
    shutil.rmtree(folder.at("adapter"))
    done = folder.train(spec, more=["--resume", folder.run_folder()], expect=USAGE)
    assert "needs it no more: --config RUN/run.yaml --resume RUN" in done.err
    folder.ztrain("--config", folder.run_folder() + "/run.yaml", "--resume", folder.run_folder(), "--set", "train.max_steps=2")


def test_a_folder_that_is_no_adapter_is_refused(folder):
    done = folder.train(lora(folder, {"model": {"adapter": base_of(folder)}, "peft": None}), expect=USAGE)
    assert ADAPTER[0] in done.err and "hint: it is a PEFT folder; ztrain export writes that of a run" in done.err


def test_an_adapter_of_another_family_is_refused(folder):
    place = adapter_folder(folder)
    done = folder.train(lora(folder, {"model": {"adapter": place}, "peft": None}, config=GPT2), expect=USAGE)
    assert f"peft: model.adapter '{place}': 'peft.target_modules' matches no module of the model; hint: its" in done.final_error, done


def test_positions_have_no_adapter(folder):
    done = folder.train(lora(folder, {}, {**PLAIN, "target_modules": ["wpe"]}, GPT2), expect=USAGE)
    assert "'peft.target_modules': 'transformer.wpe.lora_embedding_A' of positions, types or inputs of layers is not supported; hint: leave" in done.err, done


def test_another_adapter_is_another_run(folder):
    folder.train(lora(folder, {}, PLAIN), sets=["train.max_steps=2"])
    done = folder.train(lora(folder, {}, {**PLAIN, "r": 5}), more=["--resume", folder.run_folder()], expect=USAGE)
    assert "'peft.r' was 4 in the checkpoint and is 5 now" in done.err


# ---- PEFT --------------------------------------------------------------------------------------------------------------

def test_the_list_of_golden_adapters_is_whole():
    """Every family, and every key that changes what an adapter computes."""
    with open(os.path.join(ROOT, "docs", "models.md"), encoding="utf-8") as f:
        table = f.read().split("\nRoPE may be scaled")[0]
    families = {name for line in table.split("\n") if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}
    trained, keys = set(), set()
    for case in peft_cases.stored().values():
        with open(os.path.join(ROOT, "tests", "golden", case["case"], "config.json"), encoding="utf-8") as f:
            trained.add(json.load(f)["model_type"])
        keys |= set(case["peft"])
    assert families <= trained, families - trained
    assert {"r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "target_parameters", "exclude_modules", "modules_to_save",
            "rank_pattern", "alpha_pattern", "layers_to_transform"} <= keys
