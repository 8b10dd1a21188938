# SPDX-License-Identifier: Apache-2.0
"""Folders of a run that are links, files or gone: nothing is taken for absent that only cannot be opened, and nothing is made
in the place of a folder that was moved."""
import os
import shutil

import pytest

from harness import CHECKPOINT, FINISHED, USAGE, wait_for_checkpoint

TWO = {"train": {"epochs": 2}}
WORDS = {"link": "is a broken link", "file": "is not a folder"}


def everything(top):
    """Every name below a folder, with the bytes of files and the targets of links."""
    found = {}
    for where, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(where, name)
            found[path] = os.readlink(path) if os.path.islink(path) else open(path, "rb").read() if name in files else None
    return found


def put(kind, path, target):
    if kind == "link":
        os.symlink(target, path)
    else:
        with open(path, "w", encoding="utf-8") as f:
            f.write("a file where a folder should be")


@pytest.mark.parametrize("kind", ["link", "file"])
@pytest.mark.parametrize("part", ["checkpoints", ""])
def test_what_is_there_and_is_no_folder_is_not_taken_for_absent(folder, part, kind):
    """runs/run/checkpoints, or runs/run itself, leads to a disk that is not mounted, or is a file."""
    spec = folder.spec({**TWO, "checkpoint": {"keep_last": 1}})
    folder.ztrain("--config", spec)
    run, place, disk = folder.run_folder(), os.path.join(folder.run_folder(), part).rstrip("/"), folder.at("disk")
    os.rename(place, disk)
    put(kind, place, disk + "-away")
    before = everything(folder.at("runs"))
    for arguments in (["--config", spec], ["--config", spec, "--local-gpus", 2, "--resume", "auto"], ["--config", spec, "--resume", run],
                      ["--config", spec, "--dry-run"], ["verify", run], ["inspect", run], ["sample", run, "--prompt-tokens", "1,2"],
                      ["export", run, "--out", folder.at("hf")], ["export", run, "--best", "--out", folder.at("hf")]):
        done = folder.ztrain(*arguments, expect=CHECKPOINT)
        assert f"{place}': it {WORDS[kind]}" in done.err or f"'{place}' {WORDS[kind]}" in done.err, done
    report = folder.ztrain("report", run, expect=FINISHED if part else CHECKPOINT)
    assert (WORDS[kind] if part or kind == "link" else "is a file") in report.err, report
    assert CHECKPOINT == folder.ztrain("why", run, expect=CHECKPOINT).code
    assert everything(folder.at("runs")) == before and not os.path.exists(folder.at("hf"))
    os.remove(place)
    os.rename(disk, place)
    done = folder.ztrain("--config", spec, "--resume", "auto")
    assert "nothing to do" in done.out and folder.checkpoints() == ["epoch-0002"]


def test_a_newest_checkpoint_that_leads_nowhere_is_not_passed_over(folder):
    spec = folder.spec(TWO)
    folder.ztrain("--config", spec)
    newest = os.path.join(folder.run_folder(), "checkpoints", "epoch-0002")
    os.rename(newest, folder.at("disk"))
    os.symlink(folder.at("away"), newest)
    done = folder.ztrain("--config", spec, "--resume", "auto", expect=CHECKPOINT)
    assert "epoch-0002': it is a broken link" in done.final_error and "epoch-0001' is of step 3" in done.final_error, done
    assert "holds checkpoints" in folder.ztrain("--config", spec, expect=USAGE).final_error
    assert "broken link" in folder.ztrain("verify", folder.run_folder(), expect=CHECKPOINT).out
    os.rename(folder.at("disk"), folder.at("away"))
    assert "nothing to do" in folder.ztrain("--config", spec, "--resume", "auto").out


@pytest.mark.parametrize("ranks, background", [(1, True), (2, False)])
def test_a_run_folder_that_is_moved_ends_the_run_and_leaves_no_stub(folder, ranks, background):
    changes = {"train": {"epochs": None, "max_steps": 1000000}, "data": {"validation": None},
               "checkpoint": {"interval_steps": 2, "keep_last": 1, "save_at_epoch_end": False, "writer": {"decoupled": background}}}
    process = folder.start("--config", folder.spec(changes), *(["--local-gpus", ranks] if ranks > 1 else []))
    step = wait_for_checkpoint(folder, process)
    os.rename(folder.run_folder(), folder.at("moved"))
    done = folder.wait(process, 20)
    assert done.code == CHECKPOINT and f"'{folder.run_folder()}' is gone: it was moved or deleted" in done.err, done
    assert os.listdir(folder.at("runs")) == []
    spec = folder.spec({**changes, "train": {"epochs": None, "max_steps": step + 1}})
    done = folder.ztrain("--config", spec, "--resume", folder.at("moved"))
    assert f"the run folder was moved: the run continues in {folder.at('moved')}" in done.out
    assert os.listdir(folder.at("runs")) == []


@pytest.mark.parametrize("name", ["owner", "lock", "metrics.jsonl", "log/rank-00000.log"])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(folder, name):
    spec = folder.spec(TWO)
    folder.ztrain("--config", spec)
    path = os.path.join(folder.run_folder(), name)
    if os.path.exists(path):
        os.remove(path)
    os.mkfifo(path)
    done = folder.ztrain("--config", spec, "--resume", "auto", expect=CHECKPOINT)
    assert f"{path}': it is not a regular file" in done.final_error, done
    report = folder.ztrain("report", folder.run_folder(), expect=CHECKPOINT if name == "metrics.jsonl" else FINISHED)
    assert ("it is not a regular file" in report.err) == (name == "metrics.jsonl")


def test_what_a_kill_left_after_the_last_checkpoint_is_mended_where_nothing_is_to_do(folder):
    checkpoint = {"keep_last": 1}
    folder.train({"train": {"epochs": 1}, "checkpoint": checkpoint})
    top = os.path.join(folder.run_folder(), "checkpoints")
    shutil.copytree(os.path.join(top, "epoch-0001"), folder.at("former"))
    spec = folder.spec({**TWO, "checkpoint": checkpoint})
    folder.ztrain("--config", spec, "--resume", "auto")
    assert folder.checkpoints() == ["epoch-0002"]
    shutil.copytree(folder.at("former"), os.path.join(top, "epoch-0001"))  # the kill came before it was deleted,
    shutil.copytree(folder.at("former"), os.path.join(top, ".tmp-delete-step-00000002"))  # while another one was,
    os.remove(os.path.join(top, "latest"))  # and before `latest` moved
    os.symlink("epoch-0001", os.path.join(top, "latest"))
    assert "nothing to do" in folder.ztrain("--config", spec, "--resume", "auto").out
    assert sorted(os.listdir(top)) == ["epoch-0002", "latest"] and folder.latest().endswith("epoch-0002")
    folder.ztrain("verify", folder.run_folder())
