# SPDX-License-Identifier: Apache-2.0
"""data.packing: first_fit and data.document_mask: samples of whole documents, the same at every world size and after a resume."""
import os

import pytest

from harness import DATA, GPT2, SEQUENCE, USAGE, documents, write_mask, write_megatron

PACKED = {"data": {"packing": "first_fit"}}


def prepared(folder):
    folder.spec()  # makes the data that this replaces
    docs = documents(150, longest=30)
    write_megatron(folder.at("train"), docs)
    return docs


def packed(docs):
    """The lengths of the samples, by the rule."""
    samples = []
    for document in docs:
        length = min(len(document), SEQUENCE)
        for i, used in enumerate(samples):
            if used + length <= SEQUENCE:
                samples[i] += length
                break
        else:
            samples.append(length)
    return samples


def test_samples_are_whole_documents(folder):
    samples = packed(prepared(folder))
    done = folder.train({"data": {"packing": "first_fit", "shuffle": False}, "train": {"epochs": 1}}, more=["--verbose"])
    assert f"150 documents in {len(samples)} samples" in done.out
    steps = folder.metrics().steps
    assert len(steps) == len(samples) // 12
    sums = [sum(samples[12 * k:12 * k + 12]) for k in range(len(steps))]
    assert [row["targets"] for row in steps] == [total - 12 for total in sums]
    assert [row["tokens"] for row in steps] == [sum(sums[:k + 1]) for k in range(len(steps))]


def test_world_sizes_and_stages_agree(folder):
    docs = prepared(folder)
    write_mask(folder.at("train"), sum(map(len, docs)), lambda i: i % 5 > 1)
    losses = []
    for ranks, stage in ((1, 0), (2, 3), (3, 1)):
        name = f"{ranks}-{stage}"
        folder.train({**PACKED, "zero_optimization": {"stage": stage}}, name=name, ranks=ranks)
        losses.append([(row["targets"], pytest.approx(row["loss"], rel=1e-4)) for row in folder.metrics(name).steps])
    assert losses[0] == losses[1] == losses[2]


def test_resumed(folder):
    prepared(folder)
    changes = {**PACKED, "checkpoint": {"interval_steps": 4}}
    folder.train(changes, name="whole")
    whole = folder.metrics("whole").numbers()
    middle = os.path.join(folder.run_folder("whole"), "checkpoints", "step-00000004")
    folder.train(changes, name="rest", more=["--resume", middle])
    rest = folder.metrics("rest").numbers()
    assert rest == whole[-len(rest):] and rest[0]["step"] == 5
    done = folder.train({"checkpoint": {"interval_steps": 4}}, name="other", more=["--resume", middle], expect=USAGE)
    assert "'data.packing' was" in done.err + done.out


@pytest.mark.parametrize("packing", [False, "first_fit"])
def test_what_is_cut_off_is_counted(folder, packing):
    """By arithmetic: 30 documents of 10 tokens and 6 of 40, 24 of which make a sample."""
    folder.spec()
    changes = {"data": {"packing": packing, "validation": folder.at("train")}, "train": {"max_steps": 1}, "train_batch_size": 4}
    docs = [[1] * 40 if i % 6 == 5 else [2] * 10 for i in range(36)]
    write_megatron(folder.at("train"), docs)
    cut = "6 of 36 documents are longer than data.seq_length 24 and are cut, which loses %d targets"
    done = folder.train(changes, more=["--dry-run"])
    assert "data.train: " + cut % 96 in done.out and "data.validation: " + cut % 96 in done.out
    counts = [int(20 <= i < 30) for document in docs for i in range(len(document))]  # of the long ones: 4 are kept
    write_mask(folder.at("train"), len(counts), lambda i: counts[i])
    assert "data.train: " + cut % 36 + "\n" in folder.train(changes, ranks=2).out


def test_a_run_that_loses_every_target_is_refused(folder):
    folder.spec()
    docs = [[1] * 40] * 8
    write_megatron(folder.at("train"), docs)
    write_mask(folder.at("train"), 320, lambda i: i % 40 >= SEQUENCE)
    changes = {"data": {"packing": False}, "train_batch_size": 4}
    for more in ([], ["--dry-run"]):
        done = folder.train(changes, ranks=2, more=more, expect=DATA)
        assert "data.seq_length 24 cuts every target off: 8 of 8 documents are longer, and their 128 targets" in done.final_error
    assert not os.path.exists(folder.run_folder())
    assert "cut" not in folder.train({"train_batch_size": 4, "train": {"max_steps": 1}}).out  # packed, all are learned
    short = {"data": {"packing": False, "train": folder.at("validation"), "validation": folder.at("train")}}
    done = folder.train({**short, "train_batch_size": 2}, name="evaluated", more=["--dry-run"])
    assert "data.validation: 8 of 8 documents" in done.out and "loses 128 targets, and leaves none" in done.out
    write_mask(folder.at("train"), 320, lambda i: 0)  # whose targets are not lost by a cut
    assert "which loses 0 targets" in folder.train(changes, more=["--dry-run"]).out


def test_graphs_are_refused(folder):
    prepared(folder)
    done = folder.train({**PACKED, "train": {"cuda_graphs": True}}, expect=USAGE)
    assert "cuda_graphs" in done.final_error


# --- data.document_mask -----------------------------------------------------------------------------------------------

APART = {"data": {"packing": "first_fit", "document_mask": True}}


@pytest.mark.parametrize("model", [None, GPT2], ids=["llama", "gpt2"])
def test_documents_that_are_apart_are_as_if_alone(folder, model):
    """A step over all documents has the loss and the gradient that it has with a document a sample."""
    docs = prepared(folder)
    changes = {"model": {"config": model}} if model else {}
    changes["train"] = {"epochs": 1, "max_steps": 3}
    count = len(packed(docs))
    folder.train({**changes, **APART, "train_batch_size": count}, name="apart")
    folder.train({**changes, "data": {"packing": False}, "train_batch_size": 150}, name="alone")
    folder.train({**changes, "data": {"packing": "first_fit"}, "train_batch_size": count}, name="together")
    apart, alone, together = (folder.metrics(name).steps[0] for name in ("apart", "alone", "together"))
    assert apart["targets"] == alone["targets"] < together["targets"]
    assert apart["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert apart["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
    assert together["loss"] != pytest.approx(alone["loss"], rel=1e-5)


def test_document_mask_at_every_stage_and_resumed(folder):
    prepared(folder)
    numbers = []
    for stage in range(4):
        name = f"stage-{stage}"
        folder.train({"data": {"document_mask": True}, "zero_optimization": {"stage": stage},
                      "checkpoint": {"interval_steps": 4}}, name=name, ranks=2)
        numbers.append(folder.metrics(name).numbers())
    assert numbers == [numbers[0]] * 4
    middle = os.path.join(folder.run_folder("stage-3"), "checkpoints", "step-00000004")
    changes = {"data": {"document_mask": True}, "zero_optimization": {"stage": 3}, "checkpoint": {"interval_steps": 4}}
    folder.train(changes, name="rest", ranks=2, more=["--resume", middle])
    rest = folder.metrics("rest").numbers()
    assert rest == numbers[3][-len(rest):] and rest[0]["step"] == 5


def test_document_mask_on_a_gpu_is_planned(folder):
    """Training is in tests/emulation. No two steps are alike, so they cannot be graphs."""
    spec = folder.spec(APART)
    done = folder.ztrain("plan", "--config", spec, "--set", "train.device=cuda")
    assert "activations" in done.out
    done = folder.ztrain("plan", "--config", spec, "--set", "train.device=cuda", "--set", "train.cuda_graphs=true", expect=USAGE)
    assert "data.document_mask" in done.final_error or "data.packing" in done.final_error
