# SPDX-License-Identifier: Apache-2.0
"""Several machines without Slurm: ranks started with torchrun's variables on two machines that have addresses of their
own. IPv4 and IPv6, a slow link, lost packets, a cut link, strangers at every port."""
import contextlib
import os
import re
import signal
import sys
import time

import pytest

from cluster_harness import BATCH, LONG, PAUSE, blamed
from harness import FINISHED, PEER, REQUEUE, SLOWNESS, USAGE, ZTRAIN

SECRET = "c3" * 32
HERE = os.path.dirname(os.path.abspath(__file__))
SHORT = {**BATCH, "train": {"epochs": None, "max_steps": 4}, "zero_optimization": {"stage": 3}}


def torchrun(folder, lan, *arguments, per_node=2, master="10.77.0.2", env=None, delays=(),
             program=(ZTRAIN,), pause=False):
    """Starts the ranks, per_node on each machine, as torchrun would; delays: {rank: seconds} of those that come late."""
    processes = []
    for rank in range(2 * per_node):
        node, local = divmod(rank, per_node)
        variables = {"RANK": rank, "WORLD_SIZE": 2 * per_node, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": per_node,
                     "GROUP_RANK": node, "MASTER_ADDR": master, "MASTER_PORT": 29400, "ZTRAIN_JOB_SECRET": SECRET,
                     **(PAUSE if pause else {}), **(env or {})}
        command = [*program, *arguments]
        if delay := dict(delays).get(rank):
            command = ["sh", "-c", f'sleep {delay}; exec "$@"', "sh", *command]
        processes.append(folder.launch(lan.nodes[node], command,
                                       {**os.environ, **{key: str(value) for key, value in variables.items()
                                                         if value is not None}}))
    return processes


def all_end(folder, processes, code=FINISHED, seconds=60):
    """Checks that every rank ends with the code; returns their output."""
    done = [folder.wait(process, seconds) for process in processes]
    assert all(each.code == code for each in done), done
    folder.wait_for_none()
    return done


@pytest.mark.parametrize("master", ["10.77.0.2", "n0", "fd77::2", "n0-v6"])
def test_two_machines(lan_folder, lan, master):
    processes = torchrun(lan_folder, lan, "--config", lan_folder.spec(SHORT), master=master)
    all_end(lan_folder, processes)
    assert lan_folder.metrics().numbers() == lan_folder.reference(SHORT, 4, "reference")


@pytest.mark.parametrize("interface", [None, "eth0"])
def test_strangers_at_every_port(lan_folder, lan, interface):
    """During start and training, on both machines. One rank comes late, so that the ports are open for a while. They
    are those of the network between the machines, whether or not it is named, and not of docker0 or of all."""
    spec = lan_folder.spec({**LONG, "comm": {"timeout_seconds": 10}})
    strangers = [lan_folder.launch(node, [sys.executable, os.path.join(HERE, "hostile.py"), 60]) for node in lan.nodes]
    more = ["--set", f"comm.interface={interface}"] if interface else []
    processes = torchrun(lan_folder, lan, "--config", spec, *more, delays={3: 3}, pause=True)
    lan_folder.wait_for_step(50, process=processes[0])
    open_now = {node.name: node.run(sys.executable, "-c", LISTENERS).split() for node in lan.nodes}
    all_end_but(lan_folder, processes, strangers)
    assert lan_folder.metrics().numbers() == lan_folder.reference(LONG, 4, "reference")
    said = [lan_folder.said(stranger).out for stranger in strangers]
    for machine, text in zip(lan.nodes, said):
        count, addresses = re.fullmatch(r"(\d+) connections: ?(.*)\n", text).groups()
        assert set(addresses.split()) <= {machine.ipv4, machine.ipv6}, text
        assert machine is lan.nodes[1] or int(count) > 20, text
    # Nothing is open any more while they train, the store aside, which rank 0 keeps for the end of the job.
    assert len(open_now["n0"]) <= 1 and open_now["n1"] == [], open_now


LISTENERS = """for table in ("tcp", "tcp6"):
    print(*[line.split()[1] for line in open("/proc/net/" + table) if line.split()[3] == "0A"])"""


def all_end_but(folder, processes, strangers):
    """Checks that the ranks end well; then asks the strangers to end."""
    done = [folder.wait(process, 90) for process in processes]
    assert all(each.code == FINISHED for each in done), done
    for stranger in strangers:
        for pid in folder.left_behind():
            with contextlib.suppress(ProcessLookupError):  # it has ended since it was listed
                os.kill(pid, signal.SIGINT)
        folder.wait(stranger, 10)


def test_a_slow_link_that_loses_packets(lan_folder, lan):
    for node in lan.nodes:
        node.slow_down("20mbit")
        node.lose(2)
    changes = {**SHORT, "comm": {"timeout_seconds": 10}}
    all_end(lan_folder, torchrun(lan_folder, lan, "--config", lan_folder.spec(changes)), seconds=90)
    assert lan_folder.metrics().numbers() == lan_folder.reference(changes, 4, "reference")


@pytest.mark.parametrize("master", ["n0", "n0-v6"])
def test_the_link_is_cut(lan_folder, lan, master):
    """Both sides end by themselves; each names the other machine."""
    processes = torchrun(lan_folder, lan, "--config", lan_folder.spec(LONG), master=master, pause=True)
    lan_folder.wait_for_step(30, process=processes[0])
    lan_folder.wait_for_checkpoint(process=processes[0])
    began = time.monotonic()
    lan.cut(1)
    done = all_end(lan_folder, processes, PEER, 20)
    assert time.monotonic() - began < 15 * SLOWNESS
    for rank, each in enumerate(done):
        own, other = ("n0", "n1") if rank < 2 else ("n1", "n0")
        assert re.search(rf"rank \d on {other} \(process \d+\) cannot be reached from {own} any more while rank \d "
                         "waited for .* in ", each.final_error), done
    lan.mend(1)
    processes = torchrun(lan_folder, lan, "--config", lan_folder.spec(LONG), "--resume", lan_folder.run_folder())
    all_end(lan_folder, processes)
    assert lan_folder.metrics().numbers() == lan_folder.reference(LONG, 4, "reference")


def test_a_machine_loses_power(lan_folder, lan):
    processes = torchrun(lan_folder, lan, "--config", lan_folder.spec(LONG), pause=True)
    lan_folder.wait_for_step(30, process=processes[0])
    lan.off(1)
    done = [lan_folder.wait(process, 20) for process in processes[:2]]
    assert all(each.code == PEER and "n1" in each.final_error for each in done), done


@pytest.mark.parametrize("victim, number", [(3, signal.SIGKILL), (0, signal.SIGKILL), (2, signal.SIGSTOP)])
def test_a_rank_goes(lan_folder, lan, victim, number):
    """No supervisor watches over these ranks: they notice by themselves that one is gone."""
    processes = torchrun(lan_folder, lan, "--config", lan_folder.spec(LONG), pause=True)
    lan_folder.wait_for_step(30, process=processes[0])
    began, pid = time.monotonic(), lan_folder.ranks()[victim]
    os.kill(pid, number)
    others = [process for rank, process in enumerate(processes) if rank != victim]
    done = [lan_folder.wait(process, 20) for process in others]
    assert all(each.code == PEER for each in done), done
    assert all(blamed(each.err) == {(victim, f"n{victim // 2}")} for each in done), done
    assert time.monotonic() - began < 15 * SLOWNESS
    if number == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)  # it finds itself given up
        os.kill(processes[victim].pid, signal.SIGCONT)  # nsenter has stopped with it
        assert lan_folder.wait(processes[victim], 20).code == PEER
    lan_folder.wait_for_none()


def test_sigterm_to_one_rank_ends_all_after_the_step(lan_folder, lan):
    processes = torchrun(lan_folder, lan, "--config", lan_folder.spec(LONG), pause=True)
    lan_folder.wait_for_step(30, process=processes[0])
    os.kill(lan_folder.ranks()[3], signal.SIGTERM)
    all_end(lan_folder, processes, REQUEUE, 20)
    processes = torchrun(lan_folder, lan, "--config", lan_folder.spec(LONG), "--resume", lan_folder.run_folder())
    all_end(lan_folder, processes)
    assert lan_folder.metrics().numbers() == lan_folder.reference(LONG, 4, "reference")


# --- half of an environment -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("env, said", [({"MASTER_ADDR": None}, "MASTER_ADDR"), ({"WORLD_SIZE": None}, "WORLD_SIZE"),
                                       ({"ZTRAIN_JOB_SECRET": None}, "ZTRAIN_JOB_SECRET"),
                                       ({"ZTRAIN_JOB_SECRET": "short"}, "ZTRAIN_JOB_SECRET"),
                                       ({"RANK": 9}, "RANK")],
                         ids=["no-address", "no-world", "no-secret", "short-secret", "impossible-rank"])
def test_half_an_environment(lan_folder, lan, env, said):
    done = all_end(lan_folder, torchrun(lan_folder, lan, "--config", lan_folder.spec(SHORT), env=env), USAGE, 20)
    spoken = [[each.final_error for each in done[machine:machine + 2] if "error" in each.err] for machine in (0, 2)]
    assert all(spoken), done  # on each machine at least one rank
    assert all(said in words and "hint" in words for words in spoken[0] + spoken[1]), done


def test_another_secret(lan_folder, lan):
    """A rank that does not know the job's secret is a stranger to the others; both sides give up in time."""
    spec = lan_folder.spec(SHORT)
    command = f'if [ "$RANK" = 1 ]; then export ZTRAIN_JOB_SECRET={"00" * 32}; fi; exec "$@"'
    processes = torchrun(lan_folder, lan, "--config", spec, per_node=1, program=["sh", "-c", command, "sh", ZTRAIN])
    done = [lan_folder.wait(process, 40) for process in processes]
    assert all(each.code == PEER for each in done), done
    assert "rank 1" in done[0].final_error and "does not know this job's secret" in done[0].err, done
    assert "ZTRAIN_JOB_SECRET" in done[1].final_error and "firewall" not in done[1].final_error, done
