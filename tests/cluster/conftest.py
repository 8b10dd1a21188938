# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on several machines: a Slurm cluster, machines without Slurm, folders whose runs are there."""
import os
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import machines  # noqa: E402
import slurm_lab  # noqa: E402
from cluster_harness import ClusterFolder  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "nodes(count): how many nodes the test's cluster has (2)")
    config.addinivalue_line("markers", "apart: needs nodes with separate host names and networks")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """What became of the test, for the fixtures that clean up after it."""
    outcome = yield
    if call.when == "call":
        item.failed = outcome.get_result().failed


class Clusters:
    """The cluster that is up, if one is: tests that want the same number of nodes share it."""

    def __init__(self):
        self.current = None

    def get(self, nodes):
        if self.current and self.current.count != nodes:
            self.end()
        if not self.current:
            self.current = slurm_lab.Cluster(nodes)
        return self.current

    def end(self):
        if self.current:
            self.current.close()
        self.current = None


@pytest.fixture(scope="session")
def clusters():
    shared = Clusters()
    yield shared
    shared.end()


@pytest.fixture
def cluster(request, clusters):
    """A Slurm cluster without jobs. After a test that failed the next one gets a new cluster."""
    if reason := slurm_lab.why_not():
        pytest.skip(f"not possible here: {reason}")
    if request.node.get_closest_marker("apart") and (reason := slurm_lab.no_machines()):
        pytest.skip(f"not possible here: {reason}")
    marker = request.node.get_closest_marker("nodes")
    shared = clusters.get(marker.args[0] if marker else 2)
    yield shared
    if getattr(request.node, "failed", False):
        print(shared.logs())
        clusters.end()
    elif not shared.cancel_all():
        clusters.end()


@pytest.fixture(scope="session")
def preload(tmp_path_factory):
    """rank_under_test.c as a library."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_under_test.c")
    library = str(tmp_path_factory.mktemp("preload") / "rank_under_test.so")
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source, "-lpthread",
                    "-ldl"], check=True)
    return library


def folder_of(path, preload, cluster=None):
    room = ClusterFolder(path, preload, cluster)
    yield room
    room.end_all()
    for process in room.processes:
        process.wait()


@pytest.fixture
def folder(tmp_path, preload, cluster):
    """As in tests/conftest.py; what runs in it runs on the cluster."""
    yield from folder_of(tmp_path, preload, cluster)


@pytest.fixture
def lan_folder(tmp_path, preload, lan):
    """The same for runs on the machines of `lan`."""
    yield from folder_of(tmp_path, preload)


@pytest.fixture
def lan():
    """Two machines n0 and n1 without Slurm, and the head between them."""
    if reason := machines.why_not():
        pytest.skip(f"not possible here: {reason}")
    with tempfile.TemporaryDirectory(prefix="ztrain-lan-", dir="/tmp") as place, machines.Machines(2, place) as two:
        yield two
