# SPDX-License-Identifier: Apache-2.0
"""train.virtual_ranks: a run has the same bits at any number of ranks and any stage, whatever else its spec asks for, and
through resumes on other numbers of ranks. What cannot be the same run is refused.

Of the features some are compared in each dtype, at a few stages and numbers of ranks; ZTRAIN_TEST_WHOLE in the environment
compares all of them, at more.
"""
import glob
import os
import random
import re
import shutil
import signal
import struct
import time
import zlib

import pytest

from harness import (BadDisk, GPT2, PEER, REQUEUE, ROOT, SEQUENCE, USAGE, Job, children, documents, merged, session_members,
                     wait_for_checkpoint, wait_for_steps, wait_for_words, wait_until, write_mask, write_megatron)
from virtual_case import DTYPES, WHOLE, prepared, result_of, spec_of, trained


def worlds_of(virtual_ranks):
    return [n for n in range(1, 9) if virtual_ranks % n == 0]


# --- every feature ----------------------------------------------------------------------------------------------------

def with_masks(folder):
    write_mask(folder.at("train"), 640 * SEQUENCE + 1, lambda i: i % 9 > 4 or i % 31 == 0)
    write_mask(folder.at("validation"), 29 * SEQUENCE + 1, lambda i: i % 7 > 3)


def with_documents(folder):
    write_megatron(folder.at("train"), documents(900, longest=30))
    write_megatron(folder.at("validation"), documents(31, seed=2, longest=30))


def with_labels(folder):
    for name, count in (("train", 700), ("validation", 29)):
        write_megatron(folder.at(name), [[1 + i % 50] * (1 + i % 9) for i in range(count)])
        with open(folder.at(f"{name}.labels"), "wb") as f:
            f.write(struct.pack(f"<{count}i", *(i % 3 for i in range(count))))


def with_sources(folder):
    folder.data(170, seed=5, name="other")
    folder.data(30, seed=6, name="few")
    return {"data": {"train": [{"path": folder.at(name), "weight": weight}
                               for name, weight in (("train", 2), ("other", 1), ("few", 0.2))]}}


def offload(folder, **places):
    os.makedirs(folder.at("disk"), exist_ok=True)
    return {f"offload_{what}": {"device": place, **({"nvme_path": folder.at("disk")} if place == "nvme" else {})}
            for what, place in places.items()}


def to_disk(folder):
    section = offload(folder, optimizer="nvme", param="nvme")
    section["offload_param"]["max_in_cpu"] = 0
    return {"zero_optimization": section, "aio": {"block_size": 8192, "queue_depth": 4}}


def optimizer(name, **params):
    return {"optimizer": {"type": name, "params": {"lr": 1e-3, "weight_decay": 0.1, **params}}}


ALL, SHARDED = (0, 1, 2, 3), (1, 2, 3)
DROPS = {"model": {"config": {**GPT2, "resid_pdrop": 0.1, "embd_pdrop": 0.2, "attn_pdrop": 0.3}}}
NARROW = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
          "data_types": {"grad_accum_dtype": "fp32"}}
NARROW_SUMS = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}
SMALL = {"reduce_bucket_size": 1500, "allgather_bucket_size": 1500, "stage3_prefetch_bucket_size": 1500}

# name: (stages, changes of the spec, or a function that prepares the folder and may return some)
FEATURES = {
    "plain": (ALL, {}),
    "tied": (ALL, {"model": {"config": GPT2}}),
    "dropout": (ALL, DROPS),
    "optimizer-cpu": (SHARDED, lambda folder: {"zero_optimization": offload(folder, optimizer="cpu")}),
    "optimizer-nvme": ((3,), lambda folder: {"zero_optimization": offload(folder, optimizer="nvme")}),
    "param-cpu": ((3,), lambda folder: {"zero_optimization": offload(folder, optimizer="cpu", param="cpu")}),
    "nvme": ((3,), to_disk),
    "norms": (ALL, {"activation_checkpointing": {"policy": "norms"}}),
    "mlp": (ALL, {"activation_checkpointing": {"policy": "mlp"}}),
    "attention": (ALL, {"activation_checkpointing": {"policy": "attention"}}),
    "block": (ALL, {"activation_checkpointing": {"policy": "block"}}),
    "block-dropout-cpu": (ALL, {**DROPS, "activation_checkpointing": {"policy": "block", "cpu_checkpointing": True}}),
    "masks": (ALL, with_masks),
    "first-fit": (ALL, lambda folder: with_documents(folder) or {"data": {"packing": "first_fit"}}),
    "unpacked": (ALL, lambda folder: with_documents(folder) or {"data": {"packing": False}}),
    "mixture": (ALL, with_sources),
    "classes": (ALL, lambda folder: with_labels(folder) or {"model": {"task": "sequence_classification"},
                                                            "data": {"packing": False}}),
    "smoothing": (ALL, {"train": {"label_smoothing": 0.1}}),
    "comm-bf16": (ALL, {"communication_data_type": "bf16"}),
    "comm-fp16": (ALL, {"communication_data_type": "fp16"}),
    "prescaled": (ALL, {"communication_data_type": "fp16", "prescale_gradients": True}),
    "predivided": (ALL, {"communication_data_type": "fp16", "gradient_predivide_factor": 3.0}),
    "muon": (ALL, optimizer("Muon", muon_lr=0.01)),
    "sgd": (ALL, optimizer("SGD", momentum=0.9)),
    "lion": (ALL, optimizer("Lion")),
    "checks": (ALL, {"train": {"check_interval_steps": 2}}),
    "buckets": (ALL, {"zero_optimization": SMALL}),
    "no-overlap": (ALL, {"zero_optimization": {**SMALL, "overlap_comm": False}}),
    "few-evaluated": (ALL, {"train": {"eval_batches": 3}}),
    "unshuffled": (ALL, {"data": {"shuffle": False}}),
    "unclipped": (ALL, {"gradient_clipping": 0.0}),
    "wide-logits": (ALL, {"train": {"logits_dtype": "fp32"}}),
    "bf16-states": (ALL, NARROW),
    "beside": (ALL, {"checkpoint": {"writer": {"decoupled": True}}}),
}
# These compute what "plain" does in another way, with the same bits.
PLACES = ("optimizer-cpu", "optimizer-nvme", "param-cpu", "nvme", "norms", "mlp", "attention", "block", "checks", "buckets",
          "no-overlap", "beside")
SHAPES = [(8, 1), (12, 3), (24, 1), (8, 3), (12, 1), (24, 3)]  # virtual ranks, accumulation
CASES = [(feature, dtype) for feature in FEATURES for dtype in DTYPES if feature != "bf16-states" or dtype == "bf16"]


def ways(key, virtual_ranks, stages, most):
    """(ranks, stage), without the run that the others are compared with: all stages and numbers of ranks take their turns."""
    rng = random.Random(zlib.crc32(key.encode()))
    ranks, order = worlds_of(virtual_ranks)[1:], []
    while len(order) < most * max(len(ranks), len(stages)):
        order += list(zip(rng.sample(ranks, len(ranks)), 3 * rng.sample(stages, len(stages))))
    return list(dict.fromkeys(order))[:most]


def chosen(feature, dtype):
    """One dtype of each feature; more only with WHOLE."""
    dtypes = [d for f, d in CASES if f == feature]
    return WHOLE or dtypes[zlib.crc32(feature.encode()) % len(dtypes)] == dtype


@pytest.mark.long
@pytest.mark.parametrize("feature, dtype", [case for case in CASES if chosen(*case)])
def test_a_feature_has_the_same_bits_at_any_number_of_ranks(folder, feature, dtype):
    stages, changes = FEATURES[feature]
    virtual_ranks, accumulation = SHAPES[(list(FEATURES).index(feature) + list(DTYPES).index(dtype)) % len(SHAPES)]
    prepared(folder)
    changes = (changes(folder) if callable(changes) else changes) or {}
    spec = merged(spec_of(virtual_ranks, accumulation, dtype=dtype), changes)
    one = trained(folder, spec_of(virtual_ranks, accumulation, dtype=dtype), 1, 0) if feature in PLACES else \
        trained(folder, spec, 1, stages[0])
    for ranks, stage in ways(f"{feature} {dtype}", virtual_ranks, stages, 5 if WHOLE else 2):
        assert trained(folder, spec, ranks, stage, OMP_NUM_THREADS="2") == one, f"{ranks} ranks, stage {stage}"


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("virtual_ranks, accumulation", SHAPES)
def test_every_stage_and_number_of_ranks(folder, virtual_ranks, accumulation, dtype):
    """Two samples in a micro-batch; two rounds of dropped activations, of which each virtual rank has its own."""
    prepared(folder)
    spec = merged(spec_of(virtual_ranks, accumulation, micro=2, dtype=dtype, steps=3), {"model": {"dropout": 0.1}})
    one = trained(folder, spec, 1, 0)
    pairs = [(n, stage) for n in worlds_of(virtual_ranks) for stage in ALL][1:]
    number = 3 * SHAPES.index((virtual_ranks, accumulation)) + list(DTYPES).index(dtype)
    for ranks, stage in pairs if WHOLE else pairs[number % 12::12]:
        assert trained(folder, spec, ranks, stage) == one, f"{ranks} ranks, stage {stage}"


GOLDEN = sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob(os.path.join(ROOT, "tests", "golden", "*", "run.yaml")))


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in GOLDEN if WHOLE or zlib.crc32(case.encode()) % 4 == 0])
def test_a_family_of_models(folder, case):
    """The golden cases: twelve samples a step."""
    place, results = os.path.join(ROOT, "tests", "golden", case), []
    for ranks, stage in ((1, 0), *ways(case, 12, ALL, 3 if WHOLE else 1)):
        sets = [f"run.dir={folder.at('runs')}", "run.name=run", f"model.pretrained={place}", f"data.train={place}/train",
                f"data.validation={place}/validation", "train.max_steps=3", "train.virtual_ranks=12",
                "train_micro_batch_size_per_gpu=1", f"zero_optimization.stage={stage}"]
        folder.ztrain("--config", os.path.join(place, "run.yaml"), "--local-gpus", ranks,
                      *(word for setting in sets for word in ("--set", setting)))
        results.append(result_of(folder, "run"))
        shutil.rmtree(folder.run_folder())
        assert results[-1] == results[0], f"{ranks} ranks, stage {stage}"


def test_without_virtual_ranks_the_comparison_finds_differences(folder):
    """It is not blind: sums in another order have other bits."""
    prepared(folder)
    spec = spec_of(4)
    spec["train"].pop("virtual_ranks")
    spec["train_micro_batch_size_per_gpu"] = spec["gradient_accumulation_steps"] = None
    one, four = trained(folder, spec, 1, 0), trained(folder, spec, 4, 0)
    assert [row.get("grad_norm") for row in one[0]] != [row.get("grad_norm") for row in four[0]]
    assert one[1].keys() == four[1].keys() == {"step-00000002", "step-00000004"} and one[1] != four[1]


@pytest.mark.parametrize("stage, nodes, changes", [
    (0, [0, 0, 1, 1], {}),
    (2, [0, 1, 1, 2], {"communication_data_type": "bf16"}),
    (3, [0, 0, 1, 1], {"communication_data_type": "fp16", "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}),
    (1, [0, 1, 0, 1, 1, 1, 2, 2], {"optimizer": {"type": "Muon", "params": {"lr": 1e-3, "muon_lr": 0.01}}}),
], ids=["2x2", "1+2+1", "2x2-cpu", "2+4+2"])
def test_nodes(folder, stage, nodes, changes):
    prepared(folder)
    spec = merged(spec_of(8, 2, dtype="bf16"), {"comm": {"timeout_seconds": 10}, **changes})
    one = trained(folder, spec, 1, stage)
    Job(folder, "--config", folder.spec(merged(spec, {"zero_optimization": {"stage": stage}})), nodes=nodes).train()
    assert result_of(folder, "run") == one
    shutil.rmtree(folder.run_folder())
    assert trained(folder, spec, len(nodes), stage) == one


@pytest.mark.long
def test_many_virtual_ranks(folder):
    """Most canonical slices of the small units are padding."""
    prepared(folder)
    spec = merged(spec_of(160, steps=3), {"model": {"dropout": 0.1}})
    one = trained(folder, spec, 1, 0)
    for ranks, stage in ((5, 3), (8, 2)):
        assert trained(folder, spec, ranks, stage) == one, f"{ranks} ranks, stage {stage}"


# --- resumes on other numbers of ranks --------------------------------------------------------------------------------

WAYS = [(4, 3), (2, 0), (1, 2), (4, 1), (2, 3)]  # (ranks, stage) of the first start and of each resume, in turns
COSINE = {"scheduler": {"type": "Cosine", "params": {"warmup_steps": 3}}}


def command_of(folder, name, changes, ranks, stage):
    return ["--config", folder.spec(merged(changes, {"zero_optimization": {"stage": stage}}), name), "--local-gpus", ranks]


def same_as_unbroken(folder, name, changes, ranks=4):
    """Trains "whole" in one go. Of the interrupted run the last checkpoint is compared, and the others that it has kept."""
    folder.ztrain(*command_of(folder, "whole", changes, ranks, 1))
    common = sorted(set(folder.checkpoints(name)) & set(folder.checkpoints("whole")))
    assert f"step-{changes['train']['max_steps']:08}" in common
    assert result_of(folder, name, common) == result_of(folder, "whole", common)


@pytest.mark.parametrize("dtype", ["fp32", pytest.param("fp16", marks=pytest.mark.long)])
def test_stopped_and_resumed_with_other_ranks(folder, dtype):
    """Each start ends after a few steps, on request. In fp16 the scale is too large at first, and grows again: steps are skipped."""
    prepared(folder)
    scale = {"fp16": {"initial_scale_power": 33, "loss_scale_window": 2}} if dtype == "fp16" else {}
    changes = merged(spec_of(4, 2, dtype=dtype, steps=60), {**COSINE, **scale})
    resume, starts = [], 0
    while True:
        ranks, stage = WAYS[starts % len(WAYS)]
        process = folder.start(*command_of(folder, "cut", changes, ranks, stage), *resume)
        if starts < 4:
            wait_for_steps(folder, process, 12 * starts + 5, "cut")
            process.send_signal(signal.SIGUSR1)
        done = folder.wait(process)
        starts += 1
        if done.code == 0:
            break
        assert done.code == REQUEUE, done
        resume = ["--resume", folder.run_folder("cut")]
    assert starts >= 4 and len(folder.metrics("cut").kinds("resumed_from")) == starts - 1
    if dtype == "fp16":
        skipped = [row["skipped"] for row in folder.metrics("cut").steps]
        assert 5 < sum(skipped) < 50
    same_as_unbroken(folder, "cut", changes)


@pytest.mark.long
@pytest.mark.parametrize("virtual_ranks, dtype, before, after", [(8, "bf16", (8, 2), (1, 0)), (12, "fp32", (3, 0), (6, 3))])
def test_from_every_checkpoint_of_a_run(folder, virtual_ranks, dtype, before, after):
    prepared(folder)
    changes = merged(spec_of(virtual_ranks, dtype=dtype, steps=6), {**COSINE, "model": {"dropout": 0.1},
                                                                     "checkpoint": {"interval_steps": 1}})
    folder.ztrain(*command_of(folder, "whole", changes, *before))
    numbers, digests = result_of(folder, "whole")
    assert len(digests) == 6
    for name in sorted(digests)[:-1]:
        path = os.path.join(folder.run_folder("whole"), "checkpoints", name)
        folder.ztrain(*command_of(folder, f"from-{name}", changes, *after), "--resume", path)
        rest, same = result_of(folder, f"from-{name}")
        assert rest == numbers[-len(rest):] and rest[-1]["step"] == 6 and rest[0]["step"] <= int(name[-2:]) + 1
        assert same.items() <= digests.items() and "step-00000006" in same


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12 if WHOLE else 2))
def test_killed_at_any_moment_and_resumed_with_other_ranks(folder, seed):
    """One rank, or the whole group at once; what was not saved is computed again."""
    prepared(folder)
    rng = random.Random(seed)
    changes = merged(spec_of(4, 3, steps=40, dtype=rng.choice(list(DTYPES))),
                     {**COSINE, "checkpoint": {"interval_steps": rng.randrange(1, 4), "keep_last": 3}})
    resume, kills, saved = [], 0, 0
    while True:
        ranks, stage = WAYS[(seed + kills) % len(WAYS)]
        process = folder.start(*command_of(folder, "cut", changes, ranks, stage), *resume)
        if kills < 3:
            saved = wait_for_checkpoint(folder, process, saved, "cut") if saved < 30 else saved
            time.sleep(rng.uniform(0, 0.1))
            victims = children(process.pid)
            if process.poll() is None and victims and rng.random() < 0.7:
                os.kill(rng.choice(victims), signal.SIGKILL)
            elif process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        done = folder.wait(process)
        if done.code == 0:
            break
        assert done.code in (PEER, -signal.SIGKILL), done
        kills += 1
        resume = ["--resume", folder.run_folder("cut")]
        wait_until(lambda: session_members(process.pid) == [], what="the end of all ranks")
    assert kills >= 1
    same_as_unbroken(folder, "cut", changes, ranks=1)


def test_an_evaluation_in_parts_with_other_ranks(folder):
    """Each part is done by another number of ranks, and the result has the bits of an evaluation in one go."""
    prepared(folder)
    folder.data(3000, seed=3, name="much")  # an evaluation takes many seconds of a slow disk
    disk = BadDisk(folder)
    changes = merged(spec_of(4, 2, steps=2), {"data": {"validation": folder.at("much")}})
    disk.fails("pread slow much.bin")
    resume, samples = [], [0]
    for ranks, stage in ((4, 2), (1, 3), (2, 0)):
        process = folder.start(*command_of(folder, "cut", changes, ranks, stage), *resume, env=disk.env)
        if resume:
            wait_for_words(folder, process, f"continues: {samples[-1]} of" if samples[-1] else "resumed from")
        else:
            wait_for_steps(folder, process, 2, "cut")
        process.send_signal(signal.SIGTERM)
        done = folder.wait(process)
        assert done.code == REQUEUE, done
        found = re.search(r"is broken off: (\d+) of \d+ samples are done", done.out)
        samples.append(int(found[1]) if found else 0)  # the first signal may come right before the evaluation
        resume = ["--resume", folder.run_folder("cut")]
    assert samples[1] < samples[2] < samples[3]
    disk.works()
    done = folder.ztrain(*command_of(folder, "cut", changes, 4, 0), *resume)
    assert f"continues: {samples[-1]} of" in done.out, done
    assert len(folder.metrics("cut").evaluations) == 1
    same_as_unbroken(folder, "cut", changes, ranks=1)


# --- what is refused --------------------------------------------------------------------------------------------------

def test_a_number_of_ranks_that_does_not_divide(folder):
    for ranks in (5, 8):
        done = folder.train(spec_of(12), ranks=ranks, expect=USAGE)
        assert f"train.virtual_ranks 12 cannot be divided among {ranks} ranks" in done.final_error
        assert "possible world sizes: 1, 2, 3, 4, 6, 12" in done.final_error
    assert not os.path.exists(folder.run_folder())
    folder.train(spec_of(12, steps=1))
    done = folder.train(spec_of(12, steps=2), ranks=5, more=["--resume", folder.run_folder()], expect=USAGE)
    assert "train.virtual_ranks 12 cannot be divided among 5 ranks" in done.final_error


def test_a_batch_that_does_not_divide(folder):
    done = folder.train(merged(spec_of(8), {"train_batch_size": 12}), expect=USAGE)
    assert "12 != 1 * 1 * 8 (world size 8: train.virtual_ranks)" in done.err, done
    done = folder.train(merged(spec_of(8), {"train_batch_size": 4, "train_micro_batch_size_per_gpu": None,
                                            "gradient_accumulation_steps": None}), expect=USAGE)
    assert "train_batch_size 4 is less than one sample on each of 8 ranks (world size 8: train.virtual_ranks)" in done.err, done


def test_one_virtual_rank(folder):
    """Its sums have no order but that of the micro-batches; two ranks cannot share it."""
    prepared(folder)
    spec = spec_of(1, 12)
    assert trained(folder, spec, 1, 0) == trained(folder, spec, 1, 3)
    done = folder.train(spec, ranks=2, expect=USAGE)
    assert "train.virtual_ranks 1 cannot be divided among 2 ranks" in done.final_error and "world sizes: 1" in done.final_error


def test_a_resume_that_would_change_the_bits(folder):
    folder.train(spec_of(4, 2, micro=2, steps=1), ranks=2)
    resume = ["--resume", folder.run_folder()]

    def refused(changes):
        return folder.train(merged(spec_of(4, 2, micro=2, steps=2), changes), more=resume, expect=USAGE).err
    said = refused({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4})
    assert "'train_micro_batch_size_per_gpu' was 2 in the checkpoint and is 1 now: with train.virtual_ranks" in said
    for virtual_ranks, accumulation in ((8, 1), (2, 4)):
        said = refused({"train": {"virtual_ranks": virtual_ranks}, "gradient_accumulation_steps": accumulation})
        assert f"'train.virtual_ranks' was 4 in the checkpoint and is {virtual_ranks} now" in said, said
    said = refused({"train": {"virtual_ranks": 0}, "gradient_accumulation_steps": None})
    assert "'train.virtual_ranks' was 4 in the checkpoint and is 0 now" in said, said
    assert len(folder.metrics().steps) == 1
    folder.train(spec_of(4, 2, micro=2, steps=2), ranks=4, more=resume)
    assert len(folder.metrics().steps) == 2


def test_what_has_no_fixed_order(folder):
    for changes, words in ((NARROW_SUMS, "grad_accum_dtype"), ({"comm": {"reduce_within_node": True}}, "reduce_within_node"),
                           (merged(NARROW, {"data_types": None}), "grad_accum_dtype")):
        done = folder.train(merged(spec_of(4), changes), ranks=2, expect=USAGE)
        assert words in done.err and "virtual_ranks" in done.err, done
