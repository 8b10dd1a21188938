# SPDX-License-Identifier: Apache-2.0
"""Training itself: the files of a run, and that the same run gives the same numbers however it is cut up."""
import json
import math
import os
import re

import pytest

from harness import (DATA, DEVICE, DIVERGED, FINISHED, GPT2, LLAMA, SEQUENCE, USAGE, VOCABULARY, documents,
                     nothing_new_in_shared_memory, shared_memory_files, write_llmc, write_megatron)

STEP_FIELDS = {"step", "epoch", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens", "targets", "tokens_per_s", "mfu",
               "memory_bytes", "seconds"}
SECONDS_FIELDS = {"step", "data", "forward", "backward", "reduce", "optimizer", "checkpoint"}


def test_a_run_learns_and_says_what_it_did(folder):
    folder.train({"train": {"epochs": 8, "eval_interval_steps": 5}, "checkpoint": {"interval_steps": 4}})
    metrics = folder.metrics()
    steps = metrics.steps
    assert [row["step"] for row in steps] == list(range(1, 25))     # 8 epochs of floor(40 / 12) steps
    assert [row["epoch"] for row in steps] == [1 + k // 3 for k in range(24)]
    assert metrics.losses[0] == pytest.approx(math.log(VOCABULARY), abs=1.0)
    assert metrics.losses[-1] < metrics.losses[0] - 1.0
    for row in steps:
        assert set(row) == STEP_FIELDS
        assert set(row["seconds"]) == SECONDS_FIELDS
        assert set(row["memory_bytes"]) == {"device", "host"}
        assert row["tokens"] == row["step"] * 12 * SEQUENCE
        assert row["lr"] == 3e-3 and row["skipped"] is False and row["loss_scale"] == 1
        assert row["grad_norm"] > 0 and row["tokens_per_s"] > 0
        parts = sum(row["seconds"][key] for key in ("data", "forward", "backward", "reduce", "optimizer"))
        assert parts <= row["seconds"]["step"] * 1.05 + 0.005
    # every 5 steps, at each epoch's end and at the run's, each step once
    assert [row["step"] for row in metrics.evaluations] == sorted({5, 10, 15, 20} | set(range(3, 25, 3)))
    for row in metrics.evaluations:
        assert row["perplexity"] == pytest.approx(math.exp(row["eval_loss"]), rel=1e-6)
        assert row["eval_tokens"] == 10 * SEQUENCE
    ends = metrics.kinds("epoch_end")
    assert [(row["epoch_end"], row["step"]) for row in ends] == [(e, 3 * e) for e in range(1, 9)]
    for row in ends:
        mean = sum(metrics.losses[row["step"] - 3:row["step"]]) / 3
        assert row["train_loss"] == pytest.approx(mean, rel=1e-6)
    names = [os.path.basename(row["checkpoint"].rstrip("/")) for row in metrics.kinds("checkpoint")]
    assert names == ["epoch-0001", "step-00000004", "epoch-0002", "step-00000008", "epoch-0003", "epoch-0004",
                     "epoch-0005", "step-00000016", "epoch-0006", "step-00000020", "epoch-0007", "epoch-0008"]
    assert sorted(folder.checkpoints()) == sorted(names)
    for row in metrics.kinds("checkpoint"):
        assert row["bytes"] > 0 and row["seconds_total"] >= row["seconds_stalled"] >= 0
    assert folder.latest().endswith("/epoch-0008")
    top = folder.run_folder()
    assert os.path.exists(f"{top}/run.yaml") and os.path.exists(f"{top}/log/rank-00000.log")


BANNER = r"""ztrain \S+: llama, \d+ parameters
ranks: 1 \(.*\); device: .*, \d+ threads?; fp32, ZeRO stage 0
batch: train_batch_size 12 = micro 12 x accumulation 1 x ranks 1; 3 steps, 3 an epoch
data: \S+/train: 40 samples of 24 tokens an epoch; validation: 10 samples
memory: [\d.]+ \wiB on each rank, [\d.]+ \wiB of [\d.]+ \wiB of host memory on each node; run folder \S+/runs/run
"""


def test_a_run_begins_with_five_lines(folder):
    """A resume has one more. The log has the rest, and --verbose prints it."""
    done = folder.train({"train": {"epochs": 1}})
    assert re.match(BANNER + "step 1/3 ", done.out), done
    with open(os.path.join(folder.run_folder(), "log", "rank-00000.log"), encoding="utf-8") as f:
        rest = [line.split(" ", 1)[1] for line in f.read().split(" step 1/3")[0].splitlines()[5:-1]]
    assert any("GEMM: " in line for line in rest) and any("activations " in line for line in rest)
    resume = ["--resume", folder.run_folder()]
    done = folder.train({"train": {"max_steps": 6}}, more=resume, sets=["train.epochs=2"])
    banner = "\n" + BANNER.replace("3 steps", "6 steps")
    assert re.search(banner + r"resumed from \S+ at step 3, epoch 2\nstep 4/6 ", done.out), done
    done = folder.train({"train": {"epochs": 1}, "data": {"validation": None, "packing": False}}, "said", more=["--verbose"])
    assert " samples of up to 24 tokens an epoch; validation: none\n" in done.out
    assert rest[1] in done.out and "GEMM: " in done.out


def test_numbers_are_printed_so_that_they_repeat_bit_for_bit(folder):
    folder.train({"train": {"epochs": 1}})
    folder.train({"train": {"epochs": 1}}, name="again")
    assert folder.metrics().numbers() == folder.metrics("again").numbers()
    with open(folder.metrics().path, encoding="utf-8") as f:
        digits = [len(line.split('"loss":')[1].split(",")[0].strip(" .0")) for line in f if '"loss":' in line]
    assert min(digits) >= 9


def test_the_effective_spec_gives_the_same_run(folder):
    folder.train({"train": {"epochs": 1}}, sets=["optimizer.params.lr=1e-3", "optimizer.params.betas=[0.8, 0.9]"])
    folder.ztrain("--config", os.path.join(folder.run_folder(), "run.yaml"), "--set", "run.name=again")
    assert folder.metrics().numbers() == folder.metrics("again").numbers()
    assert folder.metrics().steps[0]["lr"] == 1e-3


def test_set_overrides_in_order(folder):
    folder.train(sets=["train.max_steps=5", "train.max_steps=2", "run.name=other", "optimizer.params.lr=5e-4"])
    assert [row["lr"] for row in folder.metrics("other").steps] == [5e-4, 5e-4]


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_stages_give_the_same_bits(folder, model, ranks):
    seen = []
    for stage in range(4):
        folder.train({"model": {"config": model}, "train": {"epochs": 2, "eval_interval_steps": 2},
                      "zero_optimization": {"stage": stage}}, name=f"stage{stage}", ranks=ranks)
        seen.append(folder.metrics(f"stage{stage}").numbers())
    assert len([row for row in seen[0] if "loss" in row]) == 6
    for stage in range(1, 4):
        assert seen[stage] == seen[0], f"stage {stage} differs from stage 0"


def test_world_sizes_agree(folder):
    """The losses of a global batch agree within 1e-6, whatever the number of ranks and of micro-batches."""
    seen = {}
    for ranks, stage in ((1, 0), (2, 2), (3, 3), (4, 1)):
        folder.train({"train": {"epochs": 2}, "train_micro_batch_size_per_gpu": 1,
                      "zero_optimization": {"stage": stage}}, name=f"w{ranks}", ranks=ranks)
        metrics = folder.metrics(f"w{ranks}")
        seen[ranks] = metrics.losses + [row["eval_loss"] for row in metrics.evaluations]
    for ranks in (2, 3, 4):
        assert seen[ranks] == pytest.approx(seen[1], abs=1e-6), f"{ranks} ranks differ from one"


def test_accumulation_agrees_with_one_large_batch(folder):
    folder.train({"train": {"epochs": 2}}, name="whole")
    folder.train({"train": {"epochs": 2}, "train_micro_batch_size_per_gpu": 3}, name="parts")
    assert folder.metrics("parts").losses == pytest.approx(folder.metrics("whole").losses, abs=1e-6)


def test_recomputation_changes_nothing(folder):
    """Each policy, with accumulation, evaluation and bf16; enabled alone is policy block."""
    part = {"train": {"epochs": 1}, "train_micro_batch_size_per_gpu": 3, "bf16": {"enabled": True}}
    folder.train(part, name="kept")
    for policy in ("norms", "mlp", "attention", "block", None):
        section = {"policy": policy} if policy else {"enabled": True}
        folder.train({**part, "activation_checkpointing": section}, name=f"again-{policy}")
        assert folder.metrics(f"again-{policy}").numbers() == folder.metrics("kept").numbers(), policy


def test_overlap_and_bucket_sizes_change_nothing(folder):
    zero = {"stage": 3, "overlap_comm": True}
    folder.train({"zero_optimization": zero}, name="overlap", ranks=2)
    folder.train({"zero_optimization": {**zero, "overlap_comm": False, "reduce_bucket_size": 1000,
                                        "allgather_bucket_size": 1000}}, name="plain", ranks=2)
    assert folder.metrics("plain").numbers() == folder.metrics("overlap").numbers()


def test_bf16_learns_as_fp32_does(folder):
    folder.train({"train": {"epochs": 6}}, name="fp32")
    folder.train({"train": {"epochs": 6}, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}, name="bf16",
                 ranks=2)
    assert folder.metrics("bf16").losses == pytest.approx(folder.metrics("fp32").losses, abs=0.05)
    assert folder.metrics("bf16").losses != folder.metrics("fp32").losses


def test_documents_as_samples(folder):
    """With packing false a sample is a document, cut to the sequence length; its padding does not count."""
    docs = documents(29, seed=5)
    write_megatron(folder.at("docs"), docs)
    changes = {"data": {"train": folder.at("docs"), "validation": folder.at("docs"), "packing": False, "shuffle": False},
               "train": {"epochs": 1}}
    folder.train(changes)
    folder.train({**changes, "train_micro_batch_size_per_gpu": 1}, name="two", ranks=2)
    metrics = folder.metrics()
    assert len(metrics.steps) == 29 // 12
    (evaluation,) = metrics.evaluations
    assert evaluation["eval_tokens"] in (sum(min(len(d), SEQUENCE) - 1 for d in docs),
                                         sum(min(len(d), SEQUENCE) for d in docs))
    assert folder.metrics("two").losses == pytest.approx(metrics.losses, abs=1e-6)
    assert folder.metrics("two").evaluations[0]["eval_tokens"] == evaluation["eval_tokens"]


def test_a_mean_over_no_targets_is_not_zero(folder):
    """A global batch, or a validation set, of documents of one token: their loss is null, and they weigh nothing."""
    docs = documents(24, seed=5)
    write_megatron(folder.at("docs"), docs[:12] + [[1]] * 12 + docs[12:])
    write_megatron(folder.at("single"), [[1]] * 5)
    folder.train({"data": {"train": folder.at("docs"), "validation": folder.at("single"), "packing": False,
                           "shuffle": False}, "train": {"epochs": 1}}, ranks=2)
    metrics = folder.metrics()
    first, empty, last = metrics.losses
    assert empty is None and metrics.steps[1]["grad_norm"] == 0 and not metrics.steps[1]["skipped"]
    (evaluation,) = metrics.evaluations
    assert evaluation["eval_loss"] is None and evaluation["perplexity"] is None and evaluation["eval_tokens"] == 0
    (end,) = [row for row in metrics.rows if "epoch_end" in row]
    assert min(first, last) < end["train_loss"] < max(first, last)


def test_documents_shorter_than_the_filler(folder):
    """Micro-batches of short sequences are filled up, but no filler may be longer than a sequence."""
    write_megatron(folder.at("docs"), documents(29, seed=6, longest=8))
    seen = {}
    for length in (2, 3, 7):
        for name, micro in (("whole", 12), ("parts", 4)):
            folder.train({"data": {"train": folder.at("docs"), "validation": folder.at("docs"), "seq_length": length,
                                   "packing": False}, "train_micro_batch_size_per_gpu": micro}, name=f"{name}-{length}")
        seen[length] = folder.metrics(f"whole-{length}").losses
        assert folder.metrics(f"parts-{length}").losses == pytest.approx(seen[length], abs=1e-6)
    assert seen[2] != seen[3] != seen[7]


def test_max_steps_repeats_the_data_when_epochs_is_unset(folder):
    folder.train({"train": {"epochs": None, "max_steps": 7}})
    assert [row["epoch"] for row in folder.metrics().steps] == [1, 1, 1, 2, 2, 2, 3]
    folder.train({"train": {"epochs": 1, "max_steps": 7}}, name="epochs")
    assert len(folder.metrics("epochs").steps) == 3


def test_the_order_of_samples_depends_on_the_seed(folder):
    folder.train({"train": {"epochs": 1}})
    folder.train({"train": {"epochs": 1}, "data": {"shuffle": False}}, name="plain")
    folder.train({"train": {"epochs": 1}, "run": {"seed": 8}}, name="seed")
    first = [folder.metrics(name).losses for name in ("run", "plain", "seed")]
    assert first[0] != first[1] and first[0] != first[2] and first[1] != first[2]


def test_llmc_shards_lists_and_globs(folder):
    """The same tokens in three shapes give the same run."""
    folder.data()
    docs = documents(500, seed=1)
    tokens = [token for document in docs for token in document][:40 * SEQUENCE + 1]
    half = len(tokens) // 2
    write_llmc(folder.at("all.bin"), tokens)
    write_llmc(folder.at("part-0.bin"), tokens[:half])
    write_llmc(folder.at("part-1.bin"), tokens[half:], wide=True)
    write_megatron(folder.at("wide"), [tokens], dtype="i")
    shapes = {"megatron": folder.at("train"), "llmc": folder.at("all.bin"), "glob": folder.at("part-*.bin"),
              "list": [folder.at("part-0.bin"), folder.at("part-1.bin")], "int32": folder.at("wide.bin")}
    for name, value in shapes.items():
        folder.train({"train": {"epochs": 1}, "data": {"train": value, "validation": None}}, name=name)
    seen = {name: folder.metrics(name).numbers() for name in shapes}
    for name in shapes:
        assert seen[name] == seen["megatron"], name


def test_evaluation_can_be_cut_short(folder):
    folder.data()
    folder.data(50, seed=3, name="validation")
    folder.train({"train": {"epochs": 1, "eval_batches": 2}})
    assert folder.metrics().evaluations[0]["eval_tokens"] == 24 * SEQUENCE


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "documents"])
def test_a_short_evaluation_sees_the_same_samples_at_every_world_size(folder, packing):
    folder.data()
    write_megatron(folder.at("docs"), documents(50, seed=3))
    seen = []
    for ranks, micro in ((1, 12), (1, 4), (2, 3), (3, 1), (4, 3)):
        folder.train({"data": {"train": folder.at("docs"), "validation": folder.at("docs"), "packing": packing},
                      "train": {"max_steps": 1, "eval_batches": 2}, "train_micro_batch_size_per_gpu": micro},
                     name=f"{ranks}-{micro}", ranks=ranks)
        (row,) = folder.metrics(f"{ranks}-{micro}").evaluations
        seen.append((row["eval_tokens"], row["eval_loss"]))
    for tokens, loss in seen:
        assert tokens == seen[0][0] and loss == pytest.approx(seen[0][1], abs=1e-6)


def test_a_limit_of_evaluation_beyond_all_numbers(folder):
    """2⁶³ is less than eval_batches times train_batch_size."""
    write_llmc(folder.at("ones.bin"), [1] * 20001)
    folder.train({"data": {"train": folder.at("ones.bin"), "validation": folder.at("ones.bin"), "seq_length": 1},
                  "train": {"epochs": 1, "eval_batches": 500000000000000}, "train_batch_size": 20000})
    assert folder.metrics().evaluations[0]["eval_tokens"] == 20000


def test_training_on_the_validation_set_is_noticed(folder):
    folder.data(12, seed=4, name="train-validation")
    for pattern, expected in (("train*", True), ("train", False)):
        done = folder.train({"data": {"train": folder.at(pattern), "validation": folder.at("train-validation")}},
                            name=f"run-{expected}")
        words = f"'{folder.at('train-validation')}.bin' is in data.train and in data.validation"
        assert (words in done.out) == expected, done


def test_schedules(folder):
    lr, total = 1e-2, 9
    expected = {
        "Linear": lambda x: 1e-3 + (lr - 1e-3) * (1 - x),
        "Cosine": lambda x: 1e-3 + (lr - 1e-3) * 0.5 * (1 + math.cos(math.pi * x)),
    }
    for kind, formula in expected.items():
        folder.train({"train": {"epochs": 3}, "optimizer": {"params": {"lr": lr}},
                      "scheduler": {"type": kind, "params": {"warmup_steps": 3, "min_lr": 1e-3}}}, name=kind)
        want = [lr * k / 3 if k <= 3 else formula((k - 3) / (total - 3)) for k in range(1, total + 1)]
        assert [row["lr"] for row in folder.metrics(kind).steps] == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("kind, key, steps", [("Cosine", "warmup_steps", 7), ("WarmupLR", "warmup_num_steps", 1000)])
def test_schedules_that_do_not_do_what_they_seem_to(folder, kind, key, steps):
    for given, expected in ((steps, True), (6, False)):
        done = folder.train({"scheduler": {"type": kind, "params": {key: given}}}, name=f"{kind}-{given}")
        words = f"the run's 6 steps end within the warm-up of {given} (scheduler.params)"
        assert (words in done.out) == expected, done
    for low, expected in ((1e-2, True), (1e-3, False)):
        done = folder.ztrain("--config", folder.spec({"optimizer": {"params": {"lr": 3e-3}},
                                                      "scheduler": {"type": "Cosine", "params": {"min_lr": low}}}),
                             "--dry-run")
        assert ("'scheduler.params.min_lr' 0.01 is above 'optimizer.params.lr' 0.003" in done.out) == expected, done


def test_keys_from_a_deepspeed_file(folder):
    config = {"train_batch_size": 6, "optimizer": {"type": "AdamW", "params": {"lr": 2e-4}},
              "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    with open(folder.at("ds.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    folder.train({"train": {"epochs": 1}, "train_batch_size": None, "optimizer": None, "gradient_clipping": None},
                 more=["--deepspeed", folder.at("ds.json")], ranks=2)
    steps = folder.metrics().steps
    assert len(steps) == 6 and steps[0]["lr"] == 2e-4


def test_clipping_that_neither_file_sets(folder):
    """With a DeepSpeed file it is 1.0, as in DeepSpeed; a run that began without one goes on as it was."""
    with open(folder.at("ds.json"), "w", encoding="utf-8") as f:
        json.dump({"zero_optimization": {"stage": 1}}, f)
    beside, wild = ["--deepspeed", folder.at("ds.json")], {"gradient_clipping": None, "optimizer": {"params": {"lr": 0.1}}}
    for name, more in (("clipped", beside), ("free", []), ("same", [])):
        changes = {**wild, "gradient_clipping": 1.0 if name == "same" else None}
        done = folder.train(changes, name=name, more=more)
        assert ("gradient_clipping: unset \u2192 1.0, from DeepSpeed's default" in done.out) == (name == "clipped")
    assert folder.metrics("clipped").numbers() == folder.metrics("same").numbers() != folder.metrics("free").numbers()
    with open(os.path.join(folder.run_folder("clipped"), "run.yaml"), encoding="utf-8") as f:
        assert "\ngradient_clipping: 1.0\n" in f.read()
    longer = {**wild, "train": {"epochs": 4}}
    for more in (["--dry-run"], []):
        done = folder.train(longer, name="free", more=[*beside, "--resume", folder.run_folder("free"), *more])
        assert "gradient_clipping: unset \u2192 0.0, from the run as it began" in done.out
        assert "'gradient_clipping' was" not in done.out
    folder.train(longer, name="whole")
    assert folder.metrics("free").numbers()[-3:] == folder.metrics("whole").numbers()[-3:]


def test_fractions_of_an_epoch(folder):
    """An epoch has 3 steps: half of one has 2, one and a half has 5. The cosine goes with the run."""
    schedule = {"scheduler": {"type": "Cosine"}}
    done = folder.train({"train": {"epochs": 0.5}, **schedule})
    assert "2 steps, 3 an epoch" in done.out and "epoch 1 so far, 2 of its 3 steps" in done.out
    run = folder.metrics()
    assert [row["step"] for row in run.steps] == [1, 2] and [row["step"] for row in run.evaluations] == [2]
    assert folder.checkpoints() == ["step-00000002"] and run.steps[-1]["lr"] == 0
    longer = {"train": {"epochs": 1.5}, **schedule}
    for more in (["--dry-run"], []):
        done = folder.train(longer, more=["--resume", "auto", *more])
        assert "scheduler: Cosine follows the run's length, which was 2 steps in the checkpoint and is 5 now" in done.out
        assert "scheduler.params.total_steps: 2 keeps the schedule" in done.out
    run = folder.metrics()
    rates = [3e-3 / 2 * (1 + math.cos(math.pi * k / n)) for k, n in ((1, 2), (2, 2), (3, 5), (4, 5), (5, 5))]
    assert [row["lr"] for row in run.steps] == pytest.approx(rates, abs=1e-12)
    assert [row["step"] for row in run.evaluations] == [2, 3, 5] and [row["step"] for row in run.kinds("epoch_end")] == [3]
    assert "step-00000005" in folder.checkpoints() and "epoch-0001" in folder.checkpoints()
    words = "follows the run's length"
    assert words not in folder.train(longer, more=["--resume", "auto"]).out
    fixed = {"train": {"epochs": 2}, "scheduler": {"type": "Cosine", "params": {"total_steps": 5}}}
    assert words not in folder.train(fixed, more=["--resume", "auto", "--dry-run"]).out


def test_a_dry_run_refuses_what_a_run_would(folder):
    """Data and weights that are missing are no error of a dry run; what is there and wrong is."""
    folder.spec()
    done = folder.train({"data": {"train": folder.at("gone")}}, more=["--dry-run"])
    assert "data: no token shard" in done.out and "activations" in done.out
    os.symlink("nowhere", folder.at("train.mask"))
    for more in (["--dry-run"], []):
        assert "train.mask': it is a broken link" in folder.train(more=more, expect=DATA).final_error
    os.remove(folder.at("train.mask"))
    write_megatron(folder.at("foreign"), [[VOCABULARY] * 300])
    done = folder.train({"data": {"train": folder.at("foreign")}}, more=["--dry-run"], expect=DATA)
    assert f"token id {VOCABULARY} is outside the vocabulary" in done.final_error and "activations" in done.out
    folder.train({"train": {"max_steps": 1}}, name="first")
    folder.ztrain("export", folder.run_folder("first"), "--out", folder.at("hf"))
    changes = {"model": {"config": None, "pretrained": folder.at("hf")}}
    folder.train(changes, more=["--dry-run"])
    with open(folder.at("hf", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(folder.at("hf", "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, "intermediate_size": 60}, f)
    for more in (["--dry-run"], []):
        done = folder.train(changes, more=more, expect=DATA)
        assert "has shape (56, 32), but config.json asks for (60, 32)" in done.final_error
    with open(folder.at("hf", "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    os.remove(folder.at("hf", "model.safetensors"))
    done = folder.train(changes, more=["--dry-run"])
    assert "weights: no weights in" in done.out and "activations" in done.out


def test_a_run_that_diverges_ends_with_7(folder):
    """Non-finite gradients are named and skipped, and too many of them in a row end the run."""
    done = folder.train({"train": {"epochs": 20}, "optimizer": {"params": {"lr": 1e6, "weight_decay": 1.0}}},
                        expect=DIVERGED)
    assert "non-finite" in done.err
    steps = folder.metrics().steps
    assert sum(row["skipped"] for row in steps) >= 9


def refused_export(folder, words):
    """The model of a run that has diverged is exported with --force only."""
    out = folder.at("hf")
    done = folder.ztrain("export", folder.run_folder(), "--out", out, expect=DIVERGED)
    assert words in done.final_error and "--force exports this one as it is" in done.final_error, done
    assert not os.path.exists(os.path.join(out, "config.json"))
    folder.ztrain("export", folder.run_folder(), "--out", out, "--force")
    assert os.path.exists(os.path.join(out, "config.json"))


def test_a_run_that_never_took_a_step_ends_with_7(folder):
    """Also where it is resumed and has nothing to do."""
    changes = {"train": {"epochs": 1}, "fp16": {"enabled": True, "loss_scale": 2.0**60}}
    for more in ([], ["--resume", folder.run_folder()]):
        done = folder.train(changes, more=more, expect=DIVERGED)
        assert "all 3 steps were skipped, as none had finite gradients" in done.final_error, done
    assert [row["skipped"] for row in folder.metrics().steps] == [True] * 3
    refused_export(folder, "all 3 steps were skipped")


def test_a_run_whose_last_evaluation_is_not_finite_ends_with_7(folder):
    """Its gradients were finite in the one step that it made."""
    changes = {"train": {"epochs": None, "max_steps": 1}, "model": {"config": {**LLAMA, "initializer_range": 10.0}},
               "optimizer": {"params": {"lr": 1e6, "weight_decay": 1e6}}}  # a matrix's weights are 1e12 times as large then
    done = folder.train(changes, ranks=2, expect=DIVERGED)
    assert "the loss of the evaluation after step 1 is not finite" in done.final_error, done
    (evaluation,) = folder.metrics().evaluations
    assert evaluation["eval_loss"] is None and not folder.metrics().steps[0]["skipped"]
    refused_export(folder, "the loss of the evaluation after step 1 is not finite")


def test_an_old_run_is_not_overwritten(folder):
    folder.train({"train": {"epochs": 1}})
    before = folder.metrics().numbers()
    done = folder.train({"train": {"epochs": 1}}, expect=USAGE)
    assert "--resume" in done.final_error and folder.run_folder() in done.final_error
    assert folder.metrics().numbers() == before


def test_metrics_of_a_run_without_checkpoints_are_moved_aside(folder):
    os.makedirs(folder.run_folder())
    with open(os.path.join(folder.run_folder(), "metrics.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"step": 1, "loss": 9.0}\n')
    folder.train({"train": {"epochs": 1}})
    assert len(folder.metrics().steps) == 3
    aside = [name for name in os.listdir(folder.run_folder()) if name.startswith("metrics.jsonl.")]
    assert len(aside) == 1
    with open(os.path.join(folder.run_folder(), aside[0]), encoding="utf-8") as f:
        assert "9.0" in f.read()


def test_only_the_newest_checkpoints_are_kept(folder):
    folder.train({"train": {"epochs": 3}, "checkpoint": {"interval_steps": 1, "keep_last": 2}})
    assert sorted(folder.checkpoints()) == ["epoch-0003", "step-00000008"]
    folder.ztrain("verify", folder.run_folder())


def test_plan_and_dry_run_allocate_and_write_nothing(folder):
    spec = folder.spec({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True},
                        "scheduler": {"type": "Linear", "params": {"warmup_steps": 2}}})
    done = folder.ztrain("--config", spec, "--dry-run", "--local-gpus", 2)
    assert "stage: 3" in done.out and "train_batch_size 12" in done.out and "learning rates" in done.out
    for kind in ("parameters", "gradients", "optimizer", "activations"):
        assert kind in done.out
    planned = folder.ztrain("plan", "--config", spec, "--world", 2)
    assert "parameters" in planned.out
    assert not os.path.exists(folder.at("runs"))


def test_an_interval_of_evaluations_without_data_is_noticed(folder):
    changes = {"train": {"epochs": 1, "eval_interval_steps": 2}, "data": {"validation": None}}
    words = "train.eval_interval_steps is set, but there is no data.validation"
    assert words in folder.ztrain("--config", folder.spec(changes), "--dry-run").out
    assert folder.train(changes, ranks=2).out.count(words) == 1
    assert words not in folder.ztrain("--config", folder.spec({"train": {"eval_interval_steps": 2}}), "--dry-run").out


def test_a_dry_run_looks_at_the_run_folder(folder):
    words = "the folder holds checkpoints: a run there needs --resume"
    spec = folder.spec()
    assert words not in folder.ztrain("--config", spec, "--dry-run").out
    folder.train()
    assert words in folder.ztrain("--config", spec, "--dry-run").out
    assert words not in folder.ztrain("--config", spec, "--dry-run", "--set", "run.name=new").out
    assert words not in folder.ztrain("--config", spec, "--dry-run", "--resume", folder.run_folder()).out


def test_a_gpu_that_is_not_there_is_reported_once(folder):
    """The lowest rank reports it, without its name in front; the hint depends on the build."""
    spec = folder.spec({"train": {"device": "cuda"}})
    done = folder.wait(folder.start("--config", spec, "--local-gpus", 2, env={"CUDA_VISIBLE_DEVICES": ""}))
    assert done.code == DEVICE, done
    said = re.findall(r"train\.device cuda: (.*)", done.err)
    assert len(said) == 1 and not re.search(r"rank \d on", said[0]), done
    if "no CUDA backend" in said[0]:
        assert "hint: build ztrain where nvcc is installed" in said[0], done
    else:
        assert "set train.device to cpu or auto" in said[0] and "nvcc" not in said[0], done


def test_a_plan_for_gpus_needs_none(folder):
    spec = folder.spec({"train": {"device": "cuda"}, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})
    done = folder.wait(folder.start("plan", "--config", spec, "--world", 4, env={"CUDA_VISIBLE_DEVICES": ""}))
    assert done.code == FINISHED, done
    assert "estimates cuDNN's workspace" in done.out
    assert "% of the 79.1 GiB of NVIDIA H100 80GB HBM3, assumed" in done.out and "workspace" in done.out
    dry = folder.ztrain("--config", spec, "--dry-run", env={"CUDA_VISIBLE_DEVICES": ""})
    assert "learning rates" in dry.out and "NVIDIA H100 80GB HBM3, assumed" in dry.out
    large = {"model": {"config": {**GPT2, "n_embd": 32768, "n_head": 512, "n_layer": 40}}, "train": {"device": "cuda"}}
    done = folder.ztrain("plan", "--config", folder.spec(large, "large"), env={"CUDA_VISIBLE_DEVICES": ""})
    assert "does not fit" in done.out + done.err
    assert not os.path.exists(folder.at("runs"))


def test_nothing_is_left_behind(folder):
    before = shared_memory_files()
    folder.train({"train": {"epochs": 1}}, ranks=3)
    nothing_new_in_shared_memory(before)
    assert not [name for name in os.listdir(os.path.join(folder.run_folder(), "checkpoints")) if name.startswith(".tmp")]


def test_the_ranks_of_a_run_are_named_in_its_output(folder):
    done = folder.train({"train": {"epochs": 1}}, ranks=2)
    assert any("rank 0" in line or "[0]" in line for line in done.out.splitlines()), done
    assert os.path.exists(os.path.join(folder.run_folder(), "log", "rank-00001.log"))


def test_wall_clock_breakdown_and_profile(folder):
    done = folder.train({"train": {"epochs": 1}, "wall_clock_breakdown": True}, more=["--profile"])
    assert "forward" in done.out and "backward" in done.out
    assert "linear_fwd" in done.out and "attention_bwd" in done.out


def test_a_finished_run_sums_itself_up(folder):
    """The summary covers both starts: the time of the steps, the best evaluation, and the checkpoint nearest to it."""
    changes = {"train": {"eval_interval_steps": 1, "max_steps": 3, "epochs": None},
               "checkpoint": {"interval_steps": 1, "keep_last": 2}}
    folder.train(changes)
    changes["train"]["max_steps"] = 5
    said = folder.train(changes, ranks=2, more=["--resume", folder.run_folder()]).out
    metrics = folder.metrics()
    best = min(metrics.evaluations, key=lambda row: row["eval_loss"])
    seconds = sum(row["seconds"]["step"] for row in metrics.steps)
    rate = metrics.steps[-1]["tokens"] / seconds
    found = re.search(r"time: steps 1 to 5 took (?:\d+ ms|0:\d\d), over 2 starts: (\d+) tokens/s on average; this process ran "
                      r"for (?:\d+ ms|0:\d\d)", said)
    assert found and abs(int(found[1]) - rate) <= 1 + 1e-3 * rate, said
    kept = folder.run_folder() + "/checkpoints/" + min(
        folder.checkpoints(), key=lambda name: abs(int(name.split("-")[1]) - best["step"]))
    where = "its checkpoint is " + ("" if kept.endswith(f"{best['step']:08d}") else "not kept, the nearest is ") + kept
    assert f"best evaluation: after step {best['step']}, eval_loss {best['eval_loss']:.4f}, " \
           f"perplexity {best['perplexity']:.2f}; {where}\n" in said, said
    assert said.splitlines()[-1].startswith("[0] finished: 5 steps, ")
