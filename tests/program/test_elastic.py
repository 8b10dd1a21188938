# SPDX-License-Identifier: Apache-2.0
"""--min-gpus: a run goes on with fewer ranks, and with all of them once that is possible; the bits stay the same."""
import os
import random
import signal
import time

import pytest

from harness import BadDisk, BROKEN, DATA, FINISHED, USAGE, children, wait_for_steps, wait_until
from test_experts import QWEN3

SLOW = "pread slow train.bin"  # so that the run does not end before it is killed
# 12 samples a step = 4 virtual ranks x 3
SPEC = {"train": {"epochs": None, "max_steps": 60, "virtual_ranks": 4}, "checkpoint": {"interval_steps": 5, "keep_last": 2}}
ELASTIC = ("--local-gpus", 4, "--max-restarts", 9, "--min-gpus", 2)


def kill_rank(process, rank):
    os.kill(sorted(children(process.pid))[rank], signal.SIGKILL)


def wait_for_gain(folder):
    """Waits until there is a checkpoint of a later step than that of the newest resume."""
    def gained():
        steps, resumed = folder.whole_checkpoints(), folder.metrics().kinds("resumed_from")
        return steps and steps[-1] > max((row["step"] for row in resumed), default=0)
    wait_until(gained, what="a checkpoint")


def wait_for(folder, process, words):
    def said():
        done = folder.said(process)
        assert process.poll() is None or words in done.out, done
        return words in done.out
    wait_until(said, what=f"'{words}'")


def lost(folder, disk, how, spec, more=ELASTIC):
    """A run whose rank 3 fails while it trains, and then at each start."""
    disk.fails(SLOW)
    process = folder.start("--config", folder.spec(spec), *more, env=disk.env)
    wait_for_steps(folder, process, 6)
    wait_for_gain(folder)
    disk.fails(SLOW, f"start {how} rank-3")
    kill_rank(process, 3)
    return process


def test_ranks_that_can_share_experts(folder):
    """3 ranks could share the batch, and not the experts."""
    spec = {"model": {"config": QWEN3}, "moe": {"expert_parallel_size": 2}, "train": {"epochs": None, "max_steps": 30},
            "checkpoint": SPEC["checkpoint"]}
    disk = BadDisk(folder)
    process = lost(folder, disk, "broken", spec)
    wait_for(folder, process, "continuing on 2 of 4 ranks from step ")
    disk.works()
    assert folder.wait(process).code == FINISHED
    assert [row["ranks"] for row in folder.metrics().kinds("resumed_from")][-1] == 2


@pytest.mark.parametrize("how, reason", [("kill", "rank 3 failed twice without a newer checkpoint"),
                                         ("broken", "rank 3's device failed")])
def test_four_two_four(folder, how, reason):
    """The numbers are those of a run that stayed on four ranks."""
    folder.train(SPEC, "whole", ranks=4)
    disk = BadDisk(folder)
    process = lost(folder, disk, how, SPEC)
    wait_for(folder, process, "continuing on 2 of 4 ranks from step ")
    assert f": {reason}; the bits stay the same (train.virtual_ranks 4)\n" in folder.said(process).out
    wait_until(lambda: folder.said(process).out.count("resumed from") == 1, what="the resume")
    assert len(children(process.pid)) == 2
    wait_for_gain(folder)
    disk.fails(SLOW)
    kill_rank(process, 0)
    wait_for(folder, process, "continuing on 4 of 4 ranks from step ")
    wait_until(lambda: folder.said(process).out.count("resumed from") == 2, what="the second resume")
    assert len(children(process.pid)) == 4
    disk.works()
    done = folder.wait(process)
    assert done.code == FINISHED, done
    metrics = folder.metrics()
    assert [row["ranks"] for row in metrics.kinds("resumed_from")] == [2, 4]
    assert metrics.numbers() == folder.metrics("whole").numbers()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments(folder, seed):
    """Any rank at any moment, with ranks that sometimes cannot be started again: the numbers stay."""
    rng, spec = random.Random(seed), {**SPEC, "train": {**SPEC["train"], "max_steps": 120}}
    folder.train(spec, "whole")
    disk = BadDisk(folder)
    disk.fails(SLOW)
    process = folder.start("--config", folder.spec(spec), "--local-gpus", 4, "--max-restarts", 99, "--min-gpus", 1, env=disk.env)
    for number in range(4):
        wait_until(lambda n=number: process.poll() is not None or folder.said(process).out.count("resumed from") == n, what="the resume")
        wait_for_steps(folder, process, 3)
        wait_for_gain(folder)
        time.sleep(rng.uniform(0, 0.2))
        disk.fails(SLOW, *[f"start {rng.choice(['kill', 'broken'])} rank-{rng.randrange(1, 4)}"] * rng.randrange(2))
        assert process.poll() is None, folder.said(process)
        os.kill(rng.choice(children(process.pid)), signal.SIGKILL)
    disk.works()
    done = folder.wait(process)
    assert done.code == FINISHED and done.out.count("resumed from") == 4, done
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()


def test_too_few_are_left(folder):
    disk = BadDisk(folder)
    done = folder.wait(lost(folder, disk, "broken", SPEC, (*ELASTIC[:-1], 3)))
    assert done.code == BROKEN and "the ranks are not started again: 3 of 4 ranks are left, and no number of ranks from --min-gpus " \
        "3 to 3 can share the batch: rank 3's device failed; hint: a smaller --min-gpus" in done.err, done
    (last,) = folder.metrics().kinds("gave_up")
    assert last["exit_code"] == BROKEN and "rank 3 on" in last["cause"], last


def test_without_virtual_ranks_and_without_a_checkpoint(folder):
    """Three ranks share the batch of 12, and the line says that the bits change."""
    disk = BadDisk(folder)
    disk.fails("start kill rank-3")
    spec = {"train": {"epochs": 1}}
    done = folder.train(spec, more=(*ELASTIC,), env=disk.env)
    assert "starting on 3 of 4 ranks: rank 3 failed twice without a newer checkpoint; the bits change with the number of ranks " \
        "(train.virtual_ranks is not set)\n" in done.out, done
    assert done.out.count("again from where the run began") == 2 and len(folder.metrics().steps) == 3
    # from a checkpoint of one rank, whose micro batch is given
    fixed = {"train": {"epochs": 2}, "train_micro_batch_size_per_gpu": 6}
    folder.train({**fixed, "train": {"epochs": 1}}, "fixed")
    done = folder.train(fixed, "fixed", more=("--resume", "auto", "--local-gpus", 2, "--max-restarts", 3, "--min-gpus", 1),
                        env=os.environ)
    assert "continuing on" not in done.out
    disk.fails("start broken rank-1")
    done = folder.train({**fixed, "train": {"epochs": 3}}, "fixed", env=disk.env,
                        more=("--resume", "auto", "--local-gpus", 2, "--max-restarts", 3, "--min-gpus", 1))
    assert "continuing on 1 of 2 ranks from step 6: rank 1's device failed; the bits change" in done.out, done
    assert [row["ranks"] for row in folder.metrics("fixed").kinds("resumed_from")] == [2, 1]


def test_another_error_is_not_tried_on_fewer(folder):
    done = folder.train({"data": {"train": folder.at("nothing")}}, more=ELASTIC, expect=DATA)
    assert "restart" not in done.out.replace(folder.path, ""), done


@pytest.mark.parametrize("more, words", [
    (("--local-gpus", 4, "--min-gpus", 2), "--min-gpus needs --max-restarts K; hint: a run goes on with fewer ranks when"),
    (("--min-gpus", 2), "--min-gpus needs --max-restarts K"),
    (("--max-restarts", 1, "--min-gpus", 2), "--max-restarts needs --local-gpus N"),
    (("--local-gpus", 4, "--max-restarts", 1, "--min-gpus", 5), "--min-gpus 5 is more than --local-gpus 4; hint: from 1 to 4"),
    (("--local-gpus", 4, "--max-restarts", 1, "--min-gpus", 0), "--min-gpus must be a number from 1 to 65536, not '0'"),
])
def test_what_is_refused(folder, more, words):
    assert words in folder.train(SPEC, more=more, expect=USAGE).final_error


def test_a_resume_at_another_number_of_ranks_says_nothing_of_the_batch(folder):
    """Only where the mathematics changes is there a notice, and there the resume is refused."""
    spec = {"train": {"epochs": 1, "virtual_ranks": 4}, "train_micro_batch_size_per_gpu": 3}
    folder.train({**spec, "train": {**spec["train"], "epochs": 3}}, "whole", ranks=2)
    folder.train(spec, ranks=4)
    done = folder.train({**spec, "train": {**spec["train"], "epochs": 2}}, ranks=2, more=("--resume", "auto"))
    said = "\n".join(line for line in done.out.splitlines() if "batch: train_batch_size" not in line)
    assert "batch" not in said and "accumulation" not in said and "world size" not in said and not done.err, done
    for changes, words in [({"train": {"epochs": 3, "virtual_ranks": 2}, "train_micro_batch_size_per_gpu": None}, "train.virtual_ranks"),
                           ({"train": {"epochs": 3}, "train_micro_batch_size_per_gpu": None}, "train.virtual_ranks"),
                           ({"train_micro_batch_size_per_gpu": 1}, "'train_micro_batch_size_per_gpu' was 3 in the checkpoint and is 1 now")]:
        done = folder.train({**spec, "train": {"epochs": 3, "virtual_ranks": 4}, **changes}, ranks=2, more=("--resume", "auto"),
                            expect=USAGE)
        assert words in done.final_error, done
    done = folder.train({**spec, "train": {"epochs": 3, "virtual_ranks": 4}}, ranks=3, more=("--resume", "auto"), expect=USAGE)
    assert "train.virtual_ranks 4 cannot be divided among 3 ranks" in done.final_error, done
    folder.train({**spec, "train": {"epochs": 3, "virtual_ranks": 4}}, more=("--resume", "auto"))
    assert folder.metrics().numbers() == folder.metrics("whole").numbers()
    assert [row["ranks"] for row in folder.metrics().kinds("resumed_from")] == [2, 1]
