"""Tests in Python: program/ runs the ztrain binary as a user would, interop/ compares with transformers. Their tools are in
program/harness.py."""
import os
import signal
import sys
import zlib

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "program"))

from harness import Folder  # noqa: E402

os.environ.setdefault("ZTRAIN_GPU_TEST", "never")  # but for tests/emulation/test_gpu_test.py: calls of the GPU are counted
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin take the cores from other ranks, and cost much more


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, default=1, metavar="N",
                     help="run one test in N, chosen by its name: the same ones each time, whatever others there are")
    parser.addoption("--shard", default="1/1", metavar="K/N", help="run the K-th of N equal shares of the tests")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    most = config.getoption("--sample")
    share, shares = map(int, config.getoption("--shard").split("/"))
    if not 1 <= share <= shares:
        raise pytest.UsageError("--shard K/N: K is 1 to N")
    kept = [item for item in items if zlib.crc32(item.nodeid.encode()) % most == 0][share - 1::shares]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


@pytest.fixture
def folder(tmp_path):
    """A folder for data, models and runs; processes that still run in it at the end are killed."""
    room = Folder(tmp_path)
    yield room
    for process in room.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(autouse=True)
def same_products(request, monkeypatch):
    """A run measures at its start which instructions multiply bf16, and a busy machine may choose others the next time. Tests
    that compare two runs bit by bit need the same ones; those of the instructions themselves choose their own."""
    if request.module.__name__ not in ("test_kernels", "test_amx") and "ZTRAIN_CPU_BF16" not in os.environ:
        monkeypatch.setenv("ZTRAIN_CPU_BF16", "widen")


def pytest_terminal_summary(terminalreporter):
    """The line that scripts/parts.sh adds up. A test that could not run, or was skipped, has not passed."""
    count = {key: len(terminalreporter.stats.get(key, [])) for key in ("passed", "failed", "error", "skipped")}
    failed = count["failed"] + count["error"] + count["skipped"]
    terminalreporter.write_line(f"{count['passed']} passed, {failed} failed")
