# SPDX-License-Identifier: Apache-2.0
"""Tests in Python: program/ runs the ztrain binary as a user would, interop/ compares with transformers. Their tools are in
program/harness.py."""
import os
import signal
import sys
import zlib

import pytest
from _pytest.runner import runtestprotocol

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "program"))

from harness import Folder  # noqa: E402

os.environ.setdefault("ZTRAIN_GPU_TEST", "never")  # but for tests/emulation/test_gpu_test.py: calls of the GPU are counted
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin take the cores from other ranks, and cost much more


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, default=1, metavar="N",
                     help="run one test in N, chosen by its name and $ZTRAIN_SAMPLE_SEED, whatever others there are")
    parser.addoption("--repeat-failed", type=int, default=0, metavar="N",
                     help="repeat up to N tests that fail, once each; one that then passes is reported, and has passed")
    parser.addoption("--shard", default="1/1", metavar="K/N", help="run the K-th of N equal shares of the tests")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    most = config.getoption("--sample")
    share, shares = map(int, config.getoption("--shard").split("/"))
    if not 1 <= share <= shares:
        raise pytest.UsageError("--shard K/N: K is 1 to N")
    seed = os.environ.get("ZTRAIN_SAMPLE_SEED", "")
    drawn = set(sorted(items, key=lambda item: zlib.crc32((item.nodeid + seed).encode()))[:-(-len(items) // most)])  # at least one
    kept = [item for item in items if item in drawn][share - 1::shares]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


first_failures = []  # reports of the tests that were repeated


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Repeats a test that fails, for --repeat-failed: processes that wait for one another on a busy machine can miss a moment
    that a test supposes, and an hour of other tests shall not be lost to it."""
    if item.config.getoption("--repeat-failed") == 0:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failures = [report for report in reports if report.failed]
    if failures and len({report.nodeid for report in first_failures}) < item.config.getoption("--repeat-failed"):
        first_failures.extend(failures)
        item._initrequest()  # fixtures are made again
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


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
    """The line that scripts/parts.sh adds up. A test that could not run, or was skipped, has not passed. Before it come the first
    failures of repeated tests, whatever became of them, and a line for each, which scripts/parts.sh repeats at the end."""
    for report in first_failures:
        terminalreporter.section(f"first failure of {report.nodeid} ({report.when})")
        report.toterminal(terminalreporter._tw)
        for title, text in report.sections:
            terminalreporter.section(title, sep="-")
            terminalreporter.write_line(text)
    for name in dict.fromkeys(report.nodeid for report in first_failures):
        terminalreporter.write_line(f"failed once, was repeated: {name}")
    count = {key: len(terminalreporter.stats.get(key, [])) for key in ("passed", "failed", "error", "skipped")}
    failed = count["failed"] + count["error"] + count["skipped"]
    terminalreporter.write_line(f"{count['passed']} passed, {failed} failed")
