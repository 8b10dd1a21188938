# SPDX-License-Identifier: Apache-2.0
"""PREFIX.mask: what counts for the loss is the same at every stage and world size, and after a resume."""
import os

import pytest

from harness import DATA, GPT2, SEQUENCE, USAGE, write_mask

TOKENS = 40 * SEQUENCE + 1
STEP = 12  # samples
TOGETHER = {"document_mask": False}  # a sample's documents attend to each other


def answer(i):
    """Turns of nine tokens, of which the last four are the answer."""
    return i % 9 > 4


def masked(folder, counts=answer):
    folder.spec()  # makes the data
    write_mask(folder.at("train"), TOKENS, counts)
    write_mask(folder.at("validation"), 10 * SEQUENCE + 1, counts)


def targets_of(counts, first, samples):
    return sum(bool(counts(i)) for i in range(first * SEQUENCE + 1, (first + samples) * SEQUENCE + 1))


def test_targets_are_those_of_the_mask(folder):
    masked(folder)
    folder.train({"data": {"shuffle": False, **TOGETHER}, "train": {"epochs": 1}, "train_micro_batch_size_per_gpu": 2}, ranks=2)
    metrics = folder.metrics()
    assert [row["targets"] for row in metrics.steps] == [targets_of(answer, STEP * k, STEP) for k in range(3)]
    assert [row["tokens"] for row in metrics.steps] == [STEP * SEQUENCE * k for k in (1, 2, 3)]
    assert metrics.evaluations[-1]["eval_tokens"] == targets_of(answer, 0, 10)


def test_a_mask_of_ones_changes_no_bit(folder):
    folder.train(name="bare")
    masked(folder, lambda i: True)
    folder.train({"data": TOGETHER}, name="ones")
    assert folder.metrics("ones").numbers() == folder.metrics("bare").numbers()


@pytest.mark.parametrize("model", [None, GPT2], ids=["llama", "gpt2"])
def test_one_course_at_every_stage(folder, model):
    masked(folder)
    changes = {"model": {"config": model}} if model else {}
    numbers = []
    for stage in range(4):
        name = f"stage-{stage}"
        folder.train({**changes, "zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 6}, name=name, ranks=2)
        numbers.append(folder.metrics(name).numbers())
    assert numbers == [numbers[0]] * 4


def test_micro_batches_are_weighted_by_their_targets(folder):
    """A step in parts of any size, whose targets differ, has the gradient of the step as a whole."""
    masked(folder, lambda i: i // SEQUENCE % 4 == 0 or i % 17 == 0)
    for micro, ranks in ((12, 1), (3, 1), (1, 2)):
        folder.train({"train": {"epochs": 1}, "train_micro_batch_size_per_gpu": micro}, name=f"{micro}-{ranks}", ranks=ranks)
    whole = folder.metrics("12-1").steps
    for name in ("3-1", "1-2"):
        for row, other in zip(whole, folder.metrics(name).steps, strict=True):
            assert row["targets"] == other["targets"]
            assert other["loss"] == pytest.approx(row["loss"], rel=1e-5)
            assert other["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-4)


def test_a_step_without_targets(folder):
    """Its loss is null and its gradient 0; the weights move on with the optimizer's momentum, and the run goes on."""
    masked(folder, lambda i: i > STEP * SEQUENCE)
    changes = {"data": {"shuffle": False, **TOGETHER}, "train": {"epochs": 2}, "train_micro_batch_size_per_gpu": 3}
    folder.train(changes, ranks=2)
    rows = folder.metrics().steps
    assert [row["targets"] for row in rows] == [0, STEP * SEQUENCE, STEP * SEQUENCE] * 2
    assert [row["loss"] is None for row in rows] == [True, False, False] * 2
    assert [row["grad_norm"] == 0 for row in rows] == [True, False, False] * 2
    assert not any(row["skipped"] for row in rows)
    folder.train({**changes, "zero_optimization": {"stage": 3}}, name="sharded", ranks=2)
    assert [row["loss"] is None for row in folder.metrics("sharded").steps] == [True, False, False] * 2


def test_an_epoch_without_targets_is_named(folder):
    masked(folder, lambda i: False)
    done = folder.train({"train": {"epochs": 1}})
    assert "no target of epoch 1 counted" in done.err
    masked(folder)
    assert "no target of epoch" not in folder.train({"train": {"epochs": 1}}, name="answers").err


def test_a_resumed_run_has_the_same_mask(folder):
    masked(folder)
    changes = {"train": {"epochs": 4}, "checkpoint": {"interval_steps": 5}}
    folder.train(changes, name="whole")
    whole = folder.metrics("whole").numbers()
    middle = os.path.join(folder.run_folder("whole"), "checkpoints", "step-00000005")
    folder.train(changes, name="rest", more=["--resume", middle])
    rest = folder.metrics("rest").numbers()
    assert rest == whole[-len(rest):] and rest[0]["step"] == 6
    write_mask(folder.at("train"), TOKENS, lambda i: i % 9 > 5)
    done = folder.train(changes, name="other", more=["--resume", middle], expect=DATA)
    assert "loss masks" in done.final_error
    os.remove(folder.at("train.mask"))
    folder.train(changes, name="none", more=["--resume", middle], expect=DATA)


def test_a_mask_that_does_not_fit(folder):
    masked(folder)
    write_mask(folder.at("train"), TOKENS - 1, answer)
    done = folder.train(expect=DATA)
    assert "train.mask" in done.final_error and str(TOKENS) in done.final_error
    folder.train(sets=["train.cuda_graphs=true"], expect=USAGE)


def test_documents_are_apart_where_there_is_a_mask(folder):
    """data.document_mask is true by default with a loss mask and false without; a resumed run keeps what it began with."""
    changes, said = {"train": {"epochs": 2}, "checkpoint": {"interval_steps": 3}}, "data.document_mask: true, as data.train has"
    assert said not in folder.train(changes, name="bare", more=["--verbose"]).out
    masked(folder)
    done = folder.train(changes, name="auto", more=["--verbose"]).out
    assert said in done and ", with loss masks, documents apart; validation: " in done
    for value in (True, False):
        done = folder.train({**changes, "data": {"document_mask": value}}, name=str(value), more=["--verbose"])
        assert "data.document_mask:" not in done.out
    auto, apart, together = (folder.metrics(name).numbers() for name in ("auto", "True", "False"))
    assert auto == apart != together and auto[0]["targets"] < together[0]["targets"]
    with open(folder.at("runs", "auto", "run.yaml"), encoding="utf-8") as f:
        assert "# document_mask: true # derived" in f.read()
    assert "document_mask: false" in folder.train({**changes, "data": {"packing": False}}, more=["--dry-run"]).out

    begun = os.path.join(folder.run_folder("False"), "checkpoints", "epoch-0001")
    done = folder.train(changes, name="goes-on", more=["--verbose", "--resume", begun])
    assert "data.document_mask: false, as the run began" in done.out
    rest = folder.metrics("goes-on").numbers()
    assert rest == together[-len(rest):] and rest[0]["step"] == 4
    done = folder.train({**changes, "data": {"document_mask": True}}, name="other", more=["--resume", begun], expect=USAGE)
    assert "'data.document_mask' was false in the checkpoint and is true now" in done.err
