# SPDX-License-Identifier: Apache-2.0
"""data.train as a mixture: each source's share, its passes, the counts in metrics.jsonl, resumes and refusals."""
import json
import os
import shutil
import struct

import pytest

from harness import DATA, SEQUENCE, USAGE, write_mask, write_megatron

SIZES = {"train": 40, "other": 17, "few": 3}
STEP = 12  # samples


@pytest.fixture
def sources(folder):
    folder.spec()  # makes the data
    folder.data(SIZES["other"], seed=5, name="other")
    folder.data(SIZES["few"], seed=6, name="few")
    return folder


def mixture(folder, kind="weight", **amounts):
    return {"train": [{"path": folder.at(name), kind: amount} for name, amount in amounts.items()]}


def counts(folder, run="run", key="samples"):
    """{source: that count of each step}"""
    rows = [row["sources"] for row in folder.metrics(run).steps]
    return {os.path.basename(path): [row[path][key] for row in rows] for path in rows[0]}


def test_weights_are_shares_of_every_step(sources):
    done = sources.train({"data": mixture(sources, train=2.0, other=1, few=0.2), "train": {"epochs": 2}}, more=["--verbose"])
    steps = sources.metrics().steps
    assert len(steps) == 2 * (sum(SIZES.values()) // STEP) and [row["epoch"] for row in steps] == [1] * 5 + [2] * 5
    samples = counts(sources)
    for name, share in (("train", 20 / 32), ("other", 10 / 32), ("few", 2 / 32)):
        assert all(abs(count - share * STEP * (k + 1)) < 1 for k, count in enumerate(samples[name])), name
        assert counts(sources, key="epochs")[name] == [pytest.approx(count / SIZES[name], rel=1e-5) for count in samples[name]]
        assert f"/{name}' has {SIZES[name]} samples; its share of the run is {100 * share:.4g} %" in done.out
    assert [sum(row) for row in zip(*samples.values())] == [STEP * (k + 1) for k in range(10)]
    assert [sum(row) for row in zip(*counts(sources, key="targets").values())] == [STEP * SEQUENCE] * 10


def test_epochs_are_passes_over_a_source(sources):
    """1.2 · 40 + 8 · 3 = 72 samples are six steps: an epoch of the run ends with exactly these passes."""
    sources.train({"data": mixture(sources, "epochs", train=1.2, few=8), "train": {"epochs": 2}})
    assert [row["epoch"] for row in sources.metrics().steps] == [1] * 6 + [2] * 6
    for name, each in (("train", 48), ("few", 24)):
        samples = counts(sources)[name]
        assert (samples[5], samples[11]) == (each, 2 * each)
        assert all(abs(count - each / 6 * (k + 1)) < 1 for k, count in enumerate(samples))


def test_one_order_at_every_world_size_and_stage(sources):
    changes = {"data": mixture(sources, train=3, other=2, few=1)}
    losses, taken = [], []
    for ranks, stage, micro in ((1, 0, 12), (2, 3, 2), (3, 1, 4)):
        name = f"{ranks}-{stage}"
        sources.train({**changes, "zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": micro},
                      name=name, ranks=ranks)
        losses.append([pytest.approx(row["loss"], rel=1e-4) for row in sources.metrics(name).steps])
        taken.append([row["sources"] for row in sources.metrics(name).steps])
    assert losses[0] == losses[1] == losses[2]
    assert taken[0] == taken[1] == taken[2]


def test_resumed(sources):
    changes = {"data": mixture(sources, train=3, other=2), "train": {"epochs": 3}, "checkpoint": {"interval_steps": 3}}
    sources.train(changes, name="whole")
    whole, taken = sources.metrics("whole"), counts(sources, "whole")
    middle = os.path.join(sources.run_folder("whole"), "checkpoints", "step-00000006")
    sources.train(changes, name="rest", more=["--resume", middle])
    rest = sources.metrics("rest").numbers()
    assert rest == whole.numbers()[-len(rest):] and rest[0]["step"] == 7
    assert counts(sources, "rest") == {name: row[6:] for name, row in taken.items()}
    sources.train(changes, name="two", ranks=2, more=["--resume", middle])
    assert counts(sources, "two") == counts(sources, "rest")
    assert [row["loss"] for row in sources.metrics("two").steps] == \
        [pytest.approx(row["loss"], rel=1e-4) for row in sources.metrics("rest").steps]

    def resume(data, expect, name):
        return sources.train({**changes, "data": data}, name=name, more=["--resume", middle, "--dry-run"], expect=expect)
    done = resume(mixture(sources, train=2, other=2), USAGE, "weights")
    assert "'data.train' was" in done.err and '"weight":3.0' in done.err and '"weight":2.0' in done.err
    resume(mixture(sources, other=2, train=3), USAGE, "order")
    resume({"train": [sources.at("train"), sources.at("other")]}, USAGE, "stream")
    for end in ("bin", "idx"):
        shutil.copy(sources.at(f"other.{end}"), sources.at(f"moved.{end}"))
    done = resume(mixture(sources, train=3, moved=2), 0, "moved")
    assert "'data.train' was" in done.out
    sources.data(SIZES["other"], seed=9, name="other")
    done = sources.train(changes, name="replaced", more=["--resume", middle], expect=DATA)
    assert "holds other data" in done.final_error
    assert '"weight": 3.0' in sources.ztrain("inspect", middle).out


def test_masks_count_in_their_own_source(sources):
    write_mask(sources.at("other"), SIZES["other"] * SEQUENCE + 1, lambda i: i % 4 == 0)
    sources.train({"data": {**mixture(sources, "epochs", train=1, other=1), "document_mask": False}, "train": {"epochs": 2}})
    assert len(sources.metrics().steps) == 8
    samples, targets = counts(sources), counts(sources, key="targets")
    per_sample = SEQUENCE // 4
    for name, each in (("train", SEQUENCE), ("other", per_sample)):
        taken = [after - before for before, after in zip([0, *samples[name]], samples[name])]
        assert targets[name] == [each * count for count in taken]
    assert [row["targets"] for row in sources.metrics().steps] == [sum(row) for row in zip(*targets.values())]


def test_labels_and_packing(sources):
    """Each source with its own labels; whole documents of each source by itself."""
    for name, count in (("a", 40), ("b", 20)):
        write_megatron(sources.at(name), [[1 + i % 50] * (1 + i % 9) for i in range(count)])
        with open(sources.at(f"{name}.labels"), "wb") as f:
            f.write(struct.pack(f"<{count}i", *(i % (2 if name == "a" else 3) for i in range(count))))
    data = {**mixture(sources, a=1, b=3), "validation": None, "packing": False}
    sources.train({"model": {"task": "sequence_classification"}, "data": data, "train": {"epochs": 1}})
    assert counts(sources) == {"a": [3, 6, 9, 12, 15], "b": [9, 18, 27, 36, 45]}
    assert "LlamaForSequenceClassification" in sources.ztrain("inspect", sources.latest()).out
    with open(sources.at("b.labels.json"), "w", encoding="utf-8") as f:
        json.dump({"id2label": {"0": "x", "1": "y", "2": "z"}}, f)
    done = sources.train({"model": {"task": "sequence_classification"}, "data": data}, name="names", expect=DATA)
    assert "name their labels differently" in done.final_error
    done = sources.train({"data": {**mixture(sources, "epochs", a=1, b=1), "validation": None, "packing": "first_fit"},
                          "train_batch_size": 4}, name="whole", more=["--verbose"])
    assert "a: 40 documents in " in done.out and "b: 20 documents in " in done.out


def test_refused(sources):
    def missing(data):
        return next(line for line in sources.train({"data": data}, more=["--dry-run"]).out.splitlines() if line.startswith("data: "))

    def reason(data, **changes):
        return sources.train({"data": data, **changes}, more=["--dry-run"], expect=DATA).final_error
    assert "source '" in missing(mixture(sources, train=1, gone=1)) and "no token shard" in missing(mixture(sources, gone=1))
    again = sources.at("oth*")
    said = reason({"train": [{"path": sources.at("other"), "weight": 1}, {"path": again, "weight": 1}]})
    assert "other.bin' is in two sources of data.train" in said
    assert "0.1 epochs of its 3 samples are not one sample" in reason(mixture(sources, "epochs", train=1, few=0.1))
    assert "holds 20 samples an epoch, fewer than" in reason(mixture(sources, "epochs", train=0.5), train_batch_size=24)
    write_megatron(sources.at("short"), [[1] * SEQUENCE])
    assert f"has {SEQUENCE} tokens, too few for one sample" in reason(mixture(sources, train=1, short=1))
    for data in ({"train": []}, mixture(sources, train=-1), mixture(sources, "wieght", train=1)):
        sources.train({"data": data}, more=["--dry-run"], expect=USAGE)


def test_plan_names_the_sources(sources):
    path = sources.spec({"data": mixture(sources, train=3, other=1)})
    said = sources.ztrain("plan", "--config", path).out
    assert f"mixture: {sources.at('train')}: weight 3, 75 % of the samples" in said
    path = sources.spec({"data": mixture(sources, "epochs", train=3, other=0.5)})
    assert f"mixture: {sources.at('other')}: 0.5 epochs" in sources.ztrain("plan", "--config", path).out
