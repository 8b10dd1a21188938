"""The scripts that keep the repository in order find what they are there to find."""
import os
import shutil
import subprocess
import sys

import pytest

from harness import ROOT

FLOORS = ("core", "gpu", "comm", "ckpt", "cmd")


def check_layers(root):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "check-layers.py"), str(root)],
                          stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.fixture
def house(tmp_path):
    for floor in FLOORS:
        shutil.copytree(os.path.join(ROOT, floor), tmp_path / floor)
    return tmp_path


def append(path, text):
    with open(path, "a", encoding="utf-8") as f:
        f.write(text + "\n")


def test_the_floors_are_kept(house):
    code, out = check_layers(house)
    assert code == 0, out


def test_an_include_upwards(house):
    append(house / "core" / "log.c", '#include "cmd/commands.h"')
    code, out = check_layers(house)
    assert code == 1 and "core/log.c" in out and "floor above" in out


def test_a_circle_of_headers(house):
    append(house / "core" / "status.h", '#include "core/log.h"')
    code, out = check_layers(house)
    assert code == 1 and "circle" in out and "core/status.h" in out


def test_a_file_name_twice(house):
    shutil.copy(house / "core" / "log.c", house / "gpu" / "log.c")
    code, out = check_layers(house)
    assert code == 1 and "log.c" in out


def test_an_include_of_nothing(house):
    append(house / "gpu" / "device.c", '#include "device.h"')
    code, out = check_layers(house)
    assert code == 1 and "gpu/device.h" in out
