# SPDX-License-Identifier: Apache-2.0
"""Several adapters in one run (`peft` as a list): each has the bits of a run of its own, the base is kept and gathered once, and each
adapter's folder is that of a run."""
import os
import re
import shutil
import signal

import pytest

from harness import CHECKPOINT, DATA, DIVERGED, LLAMA, USAGE, children, merged, wait_for_checkpoint
from test_adapters import OFFLOAD, base_of, lora, numbers_of, plan_bytes, weights
from virtual_case import DTYPES, digest_of

SAVED = {"modules_to_save": ["layers.1.input_layernorm"]}
# Other matrices, ranks, rates, data, lengths; blocks of which some have nothing to train.
ITEMS = {
    "french": {"r": 5, "lora_alpha": 7, "target_modules": "all-linear", "rank_pattern": {"v_proj": 3}},
    "breton": {"r": 4, "lora_dropout": 0.25, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1],
               "optimizer": {"params": {"lr": 0.005}}},
    "gallo": {"r": 2, "use_rslora": True, "target_modules": ["embed_tokens", "lm_head", "down_proj"],
              "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": "auto"}}, "gradient_clipping": 0.05},
}


def items(folder, changes=None):
    """{name: item}, each with data of its own."""
    found = {}
    for seed, (name, item) in enumerate(ITEMS.items(), 5):
        found[name] = merged(merged(item, {"data": {"train": folder.at(name)}}), changes or {})
        if not os.path.exists(folder.at(name) + ".bin"):
            folder.data(30 + 5 * seed, seed=seed, name=name)
    return found


def alone(folder, changes, item):
    """The changes of a spec that trains this adapter alone."""
    own = {key: item[key] for key in ("data", "optimizer", "scheduler", "gradient_clipping") if key in item}
    spec = merged(lora(folder, changes), own)
    return {**spec, "peft": {key: value for key, value in item.items() if key not in own}}


def together(folder, changes, all_items):
    return {**lora(folder, changes), "peft": [{"name": name, **item} for name, item in all_items.items()]}


def outcome(folder, name):
    return numbers_of(folder, name), digest_of(folder.latest(name)), weights(folder, name)


def check_equal(folder, changes, ranks=1, item_changes=None, **more):
    """Trains all together and each alone."""
    all_items = items(folder, item_changes)
    done = folder.train(together(folder, changes, all_items), "all", ranks=ranks, **more)
    for name, item in all_items.items():
        folder.train(alone(folder, changes, item), name, ranks=ranks)
        assert outcome(folder, f"all/{name}") == outcome(folder, name), name
        shutil.rmtree(folder.run_folder(name))
    return done


# ---- the same bits -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks, stage, dtype, more", [
    (1, 0, "fp32", {}), (2, 3, "bf16", {}), (2, 1, "fp16", {}), (3, 2, "fp32", {}),
    (2, 3, "fp32", {"zero_optimization": {"offload_param": {"device": "cpu"}, **OFFLOAD}}),
    (1, 2, "bf16", {"zero_optimization": OFFLOAD}),
    (2, 3, "fp32", {"activation_checkpointing": {"policy": "block"}}),
    (1, 0, "fp32", {"optimizer": {"type": "AdamW8bit"}}),
], ids=["one", "stage3", "fp16", "three", "offload", "optimizer-offload", "recompute", "8bit"])
def test_each_has_the_bits_of_its_own_run(folder, ranks, stage, dtype, more):
    changes = merged({"zero_optimization": {"stage": stage}, **DTYPES[dtype]}, more)
    check_equal(folder, changes, ranks)


def test_a_quantized_base(folder):
    config = merged(LLAMA, {"hidden_size": 64, "intermediate_size": 128})
    base_of(folder, config)
    check_equal(folder, {"model": {"quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}},
                         "zero_optimization": {"stage": 3}, **DTYPES["bf16"]}, 2)


def test_modules_that_all_train(folder):
    check_equal(folder, {"zero_optimization": {"stage": 3}}, 2, SAVED)


def test_virtual_ranks(folder):
    check_equal(folder, {"train": {"virtual_ranks": 4}, "gradient_accumulation_steps": None, "train_batch_size": 8,
                         "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}, 2)


def test_runs_of_other_lengths(folder):
    """An adapter with less data ends earlier; the others go on."""
    done = check_equal(folder, {"train": {"epochs": 1, "max_steps": None}, "zero_optimization": {"stage": 3}}, 2)
    steps = {name: int(step) for name, step in re.findall(r"(\w+): finished: (\d+) steps", done.out)}
    assert len(steps) == 3 and len(set(steps.values())) > 1


def test_evaluations_samples_and_hashes(folder):
    check_equal(folder, {"train": {"eval_interval_steps": 1, "samples": [[1, 2, 3]], "hash_interval_steps": 2},
                         "checkpoint": {"keep_best": 1, "interval_steps": 2}, "zero_optimization": {"stage": 1}}, 2)


def test_the_base_is_gathered_once(folder):
    """What is sent in a step is the theory's: the base once for all."""
    done = folder.train(together(folder, {"zero_optimization": {"stage": 3}}, items(folder)), "all", ranks=2)
    gathered, theory = map(int, re.search(r"gathered (\d+) bytes \(theory (\d+)\)", done.out).groups())
    assert gathered == theory
    own = folder.train(alone(folder, {"zero_optimization": {"stage": 3}}, items(folder)["french"]), "french", ranks=2)
    assert gathered < 1.5 * int(re.search(r"gathered (\d+) bytes", own.out)[1])


def test_the_plan_counts_the_base_once(folder):
    all_items = items(folder)
    specs = {"all": together(folder, {}, all_items), **{name: alone(folder, {}, item) for name, item in all_items.items()}}
    params = {name: plan_bytes(folder.ztrain("plan", "--bytes", "--config", folder.spec(spec, name)).out)["device"]["parameters"]
              for name, spec in specs.items()}
    assert params["all"] < sum(params[name] for name in all_items) - params["french"]
    timed = folder.ztrain("plan", "--speed", "--config", folder.spec(specs["all"], "all")).out
    assert "tokens/s" in timed


# ---- stops, crashes, resumes -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stage, ranks", [(0, 1), (3, 2)])
def test_resumed(folder, stage, ranks):
    changes, all_items = {"zero_optimization": {"stage": stage}, "train": {"max_steps": 6}}, items(folder)
    whole = together(folder, changes, all_items)
    folder.train(whole, "all", ranks=ranks)
    folder.train(whole, "cut", ranks=ranks, sets=["train.max_steps=4"])
    folder.train(whole, "cut", ranks=ranks, more=["--resume", folder.run_folder("cut")])
    for name in all_items:
        assert outcome(folder, f"cut/{name}") == outcome(folder, f"all/{name}")
    # each folder is that of a run: it goes on alone
    folder.train(alone(folder, changes, all_items["french"]), "french", ranks=ranks, more=["--resume", "auto"])
    shutil.copytree(folder.run_folder("all"), folder.at("moved"))
    assert "nothing to do" in folder.train(whole, "all", ranks=ranks, more=["--resume", "auto"]).out


def test_where_a_resume_goes_on(folder):
    """The folder of one adapter stands for all; another run.name branches off; a new adapter begins."""
    changes, all_items = {"train": {"max_steps": 4}}, items(folder)
    whole = together(folder, changes, all_items)
    folder.train(whole, "all", sets=["train.max_steps=2"])
    folder.train(whole, "branch", more=["--resume", folder.run_folder("all")])
    assert [digest_of(folder.latest(f"{name}/french"))[1]["step"] for name in ("all", "branch")] == [2, 4]
    more = {**whole, "peft": whole["peft"] + [{"name": "cornish", "r": 3}]}
    done = folder.train(more, "all", more=["--resume", folder.run_folder("all/breton")])
    assert "cornish: no checkpoint is in" in done.out
    for name in all_items:
        assert outcome(folder, f"all/{name}")[1:] == outcome(folder, f"branch/{name}")[1:]


def test_set_is_for_all(folder):
    done = folder.train(together(folder, {}, items(folder)), "all", sets=["optimizer.params.lr=0.5"], more=["--dry-run"])
    assert done.out.count("lr: 0.5") == 3


def test_killed_and_one_without_a_checkpoint(folder):
    changes, all_items = {"train": {"max_steps": 30}, "checkpoint": {"interval_steps": 2}, "zero_optimization": {"stage": 3}}, items(folder)
    folder.train(together(folder, changes, all_items), "all", ranks=2)
    long = together(folder, merged(changes, {"train": {"max_steps": 100000}}), all_items)
    process = folder.start("--config", folder.spec(long, "cut"), "--local-gpus", 2)
    for name in all_items:
        wait_for_checkpoint(folder, process, name=f"cut/{name}")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(os.path.join(folder.run_folder("cut/gallo"), "checkpoints"))  # as if it had been killed before the first
    step = max(folder.metrics(f"cut/{name}").steps[-1]["step"] for name in all_items)
    if step < 30:
        folder.train(together(folder, changes, all_items), "cut", ranks=2, more=["--resume", folder.run_folder("cut")])
        for name in all_items:
            assert weights(folder, f"cut/{name}") == weights(folder, f"all/{name}")


def test_restarted_after_a_rank_was_killed(folder):
    changes, all_items = {"train": {"max_steps": 400}, "checkpoint": {"interval_steps": 2}, "zero_optimization": {"stage": 2}}, items(folder)
    spec = folder.spec(together(folder, changes, all_items), "all")
    process = folder.start("--config", spec, "--local-gpus", 2, "--max-restarts", 1)
    wait_for_checkpoint(folder, process, name="all/gallo")
    os.kill(children(process.pid)[1], signal.SIGKILL)
    done = folder.wait(process)
    assert done.code == 0 and "restart 1 of 1 from the newest checkpoint of each adapter" in done.out, done
    folder.train(together(folder, changes, all_items), "whole", ranks=2)
    for name in all_items:
        assert weights(folder, f"all/{name}") == weights(folder, f"whole/{name}")


def crash(folder, spec, name, *more):
    """Starts with restarts, and kills a rank once that adapter has a new checkpoint."""
    process = folder.start("--config", spec, "--local-gpus", 2, "--max-restarts", 3, *more)
    wait_for_checkpoint(folder, process, name=name)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    done = folder.wait(process)
    assert done.code == 0 and "restart 1 of 3" in done.out, done
    return done


def test_restarts_where_only_one_adapter_has_checkpoints(folder):
    """At the ends of epochs, which come at other steps: the first adapter has none yet."""
    changes, all_items = {"train": {"epochs": 3, "max_steps": None}}, items(folder)
    folder.data(3000, seed=9, name="long")
    all_items["french"]["data"]["train"] = folder.at("long")
    spec = merged(changes, {"checkpoint": {"save_at_epoch_end": True}, "train": {"max_steps": 300}})
    crash(folder, folder.spec(together(folder, spec, all_items), "all"), "all/gallo")
    folder.train(together(folder, spec, all_items), "whole", ranks=2)
    for name in all_items:
        assert weights(folder, f"all/{name}") == weights(folder, f"whole/{name}")


def test_a_branch_restarts_where_it_began(folder):
    """An adapter of the branch that has no checkpoint yet goes on from the run that was left."""
    changes, all_items = {"train": {"epochs": 3, "max_steps": None}, "checkpoint": {"save_at_epoch_end": True}}, items(folder)
    folder.data(3000, seed=9, name="long")
    all_items["french"]["data"]["train"] = folder.at("long")
    whole = together(folder, changes, all_items)
    folder.train(whole, "old", ranks=2, sets=["train.max_steps=2"])
    folder.train(whole, "whole", ranks=2, sets=["train.max_steps=300"])
    spec = folder.spec(merged(whole, {"train": {"max_steps": 300}}), "branch")
    crash(folder, spec, "branch/gallo", "--resume", folder.run_folder("old"))
    for name in all_items:
        assert weights(folder, f"branch/{name}") == weights(folder, f"whole/{name}")


def test_one_that_fails_ends_all(folder):
    """The error names the adapter. Once its item is removed, the others resume."""
    changes, all_items = {"train": {"max_steps": 20}, "checkpoint": {"interval_steps": 2}, **DTYPES["fp32"]}, items(folder)
    rate = {"optimizer": {"params": {"lr": 1e6, "weight_decay": 1e4}}}
    broken = together(folder, changes, merged(all_items, {"breton": rate}))
    done = folder.train(broken, "all", ranks=2, expect=DIVERGED)
    assert re.search(r": breton: step \d+: 10 steps in a row had non-finite gradients", done.final_error), done
    rest = {name: item for name, item in all_items.items() if name != "breton"}
    done = folder.train(together(folder, changes, rest), "all", ranks=2, more=["--resume", folder.run_folder("all")])
    assert "french: finished: 20 steps" in done.out and "gallo: finished: 20 steps" in done.out


def test_stopped_on_request(folder):
    changes, all_items = {"train": {"max_steps": 100000}}, items(folder)
    process = folder.start("--config", folder.spec(together(folder, changes, all_items), "all"))
    while not os.path.exists(os.path.join(folder.run_folder("all/gallo"), "metrics.jsonl")):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    done = folder.wait(process)
    assert done.code == 75
    for name in all_items:
        assert f"{name}: stopped on request" in done.out and folder.latest(f"all/{name}")


# ---- what is refused ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("peft, words", [
    ([], "'peft' is a list of 0 adapters"),
    ([{"name": str(i)} for i in range(17)], "'peft' is a list of 17 adapters, and may be one of 1 to 16"),
    ([{"r": 4}], "this adapter has no name"),
    (["french"], "an adapter must be a mapping"),
    ([{"name": 4}], "the name of an adapter must be a text"),
    ([{"name": "a"}, {"name": "a"}], "two adapters have the name 'a'"),
    ([{"name": "a/b"}], "'run.name' must be the name of a folder"),
    ([{"name": "a", "rank": 4}], "unknown key 'rank' in 'peft'"),
    ([{"name": "a", "train": {"epochs": 1}}], "unknown key 'train' in 'peft'"),
    ([{"name": "a"}, {"name": "b", "model": {"adapter": "gone"}}], "'model.adapter': cannot open 'gone/adapter_config.json'"),
    ([{"name": "a", "model": {"pretrained": "x"}}], "an adapter of several has no 'model.pretrained' of its own"),
    ([{"name": "a"}, {"name": "b", **SAVED}], "adapter 'b' would keep another base than 'a'"),
    ([{"name": "a"}, {"name": "b", "optimizer": {"type": "AdamW8bit"}}], "adapter 'b' would keep another base than 'a'"),
    ([{"name": "a"}, {"name": "b", "target_modules": ["nothing"]}], "b: 'peft.target_modules' matches no module"),
], ids=["none", "many", "name", "mapping", "text", "twice", "folder", "unknown", "section", "gone", "base", "saved", "8bit", "targets"])
def test_lists_that_are_refused(folder, peft, words):
    assert words in folder.train({**lora(folder), "peft": peft}, expect=USAGE).err


@pytest.mark.parametrize("changes, words", [
    ({"comms_logger": {"enabled": True}}, "'comms_logger.enabled' is not supported with several adapters"),
    ({"flops_profiler": {"enabled": True}}, "'flops_profiler.enabled' is not supported with several adapters"),
    ({"train": {"check_interval_steps": 2}}, "'train.check_interval_steps' is not supported with several adapters"),
    ({"run": {"name": "a/b"}}, "the 'run.name' of several adapters must be the name of a folder"),
])
def test_what_watches_one_model_is_refused(folder, changes, words):
    assert words in folder.train(together(folder, changes, items(folder)), expect=USAGE).err


@pytest.mark.parametrize("option", [["--profile"], ["--trace", "trace.json"]])
def test_options_of_one_model_are_refused(folder, option):
    assert "several adapters" in folder.train(together(folder, {}, items(folder)), more=option, expect=USAGE).err


def test_data_that_are_too_few_name_their_adapter(folder):
    all_items = items(folder)
    folder.data(1, seed=1, name="few")
    all_items["breton"]["data"]["train"] = folder.at("few")
    for more in ([], ["--dry-run"]):
        done = folder.train(together(folder, {}, all_items), more=more, expect=DATA)
        assert re.search(r": breton: data.train holds \d+ samples?, fewer than", done.final_error), done


def test_a_key_of_the_spec_is_reported_once(folder):
    done = folder.train({**together(folder, {}, items(folder)), "train": {"epohcs": 2}}, expect=USAGE)
    assert done.err.count("epohcs") == 1 and "1 error in the run spec" in done.err


def test_resuming_from_nothing(folder):
    os.makedirs(folder.at("empty"))
    done = folder.train(together(folder, {}, items(folder)), more=["--resume", folder.at("empty")], expect=CHECKPOINT)
    assert "empty/french" in done.err


def test_a_dry_run_shows_each(folder):
    done = folder.train(together(folder, {}, items(folder)), "all", more=["--dry-run"])
    for name in ITEMS:
        assert f"run folder: {folder.run_folder('all')}/{name}" in done.out
    assert done.out.count("# effective run spec") == 3 and not os.path.exists(folder.run_folder("all"))
