#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this computer alone, for tests and experiments.

    tests/cluster/slurm_lab.py [NODES] [-- COMMAND…]     brings a cluster of NODES (2) up, runs COMMAND ($SHELL) on
                                                         its head, with this project's build on PATH, and takes it
                                                         down; exits with COMMAND's status
    tests/cluster/slurm_lab.py 2 -- srun -N 2 hostname

It starts munged, slurmctld and a slurmd for each node as the caller, without systemd, cgroups or /etc/slurm, in about
a second. It installs nothing, and does not touch a Slurm that this computer has already. All its files are in one
temporary folder with a short path (the path of a unix socket has at most 107 bytes), which is deleted at the end.

It works in one of two ways, depending on this computer's permissions:
  machines       each node is a machine with its host name, network and processes (machines.py), which is as real as possible.
                 However this program ends, all processes of the cluster end with it.
  side by side   without the privilege for that, the nodes n0, n1, … are slurmds with this computer's host name. A second
                 process waits for the end of this program and ends the processes that are left.
"""
import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import machines

# All processes of a cluster, its jobs' included, have this in their environment: the cluster's folder.
MARK = "ZTRAIN_TEST_CLUSTER"
PROGRAMS = ["munged", "slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue"]
READY_STATES = {"idle", "mixed", "allocated", "completing", "planned"}

CONFIGURATION = """
ClusterName=lab
SlurmctldHost={head}({head_address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
# How long a requeued job waits before it starts again is the credential's life (default 120 s).
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
# PMIx's servers keep files there under the job's number.
TmpFS={folder}/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MailProg=/bin/true
MpiDefault=none
# More CPUs than there are; a job larger than the cluster is refused instead of waiting forever.
EnforcePartLimits=ALL
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=30
# A job's SIGTERM and SIGKILL are so far apart (default 30 s); scheduling is without Slurm's usual pauses.
KillWait=5
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
# A job in "main" takes one in "low" off its CPUs: notice at once, SIGTERM after GraceTime, then requeued.
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL Default=NO MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
"""


def no_machines():
    """None where the nodes can be separate machines, else the reason. slurmd must be real root to be one's root."""
    return "not root here" if os.geteuid() else machines.why_not()


def why_not():
    """None where a cluster can be brought up, else the reason in a line."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=search_path())]
    if missing:
        return f"no program '{missing[0]}' (scripts/install-deps.sh --slurm)"
    # Slurm asks for addresses of kinds that the computer has, and does not count 127.0.0.1 as one.
    if no_machines() and subprocess.run(["getent", "ahostsv4", "127.0.0.1"], stdout=subprocess.DEVNULL).returncode:
        return "no address but 127.0.0.1 here, with which Slurm does not work (as root: ip addr add 127.0.0.2/8 dev lo)"
    return None


def search_path():
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def environment_of(pid):
    """A process's environment as it was at its start; empty when it has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(entry.split("=", 1) for entry in f.read().decode(errors="replace").split("\0") if "=" in entry)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}


def program_of(pid):
    """The name of a process's program; None when it has ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as f:
            return f.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def marked(variable, value):
    """Ids of all processes that were started with this variable; those that have ended have no environment any more."""
    return [int(entry) for entry in os.listdir("/proc")
            if entry.isdigit() and environment_of(entry).get(variable) == value]


def poll(condition, seconds, what):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.05)
    return value


class SideBySide:
    """Stands in for machines.Machine where there is only this one."""

    def __init__(self, name):
        self.name, self.ipv4 = name, "127.0.0.1"

    def popen(self, command, **how):
        return subprocess.Popen(list(map(str, command)), **how)


class Cluster:
    """Slurm with nodes n0, n1, …  `apart`: the nodes are separate machines. with Cluster(2) as cluster: …"""

    def __init__(self, nodes=2, cpus=64):
        self.count, self.cpus = nodes, cpus
        self.apart = no_machines() is None
        self.folder = tempfile.mkdtemp(prefix="ztrain-lab-", dir="/tmp")
        self.daemons, self.machines, self.sweeper = [], None, None
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("SLURM", "SBATCH", "SRUN", "PMI"))}
        self.environment |= {"SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": search_path(), MARK: self.folder}
        try:
            self._up()
        except BaseException:
            self.close()
            raise

    # --- up and down --------------------------------------------------------------------------------------------------

    def _up(self):
        for name in ("state", "spool", "tmp"):
            os.mkdir(self.at(name))
        for i in range(self.count):
            os.mkdir(self.at(f"spool/n{i}"))
            os.mkdir(self.at(f"tmp/n{i}"))
        # Ends what is left of the cluster, and its folder, should this program not come to it.
        self.sweeper = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--sweep", self.folder],
                                        stdin=subprocess.PIPE, start_new_session=True)
        if self.apart:
            self.machines = machines.Machines(self.count, self.folder)
            self.head, self.nodes = self.machines.head, self.machines.nodes
        else:
            self.head, self.nodes = SideBySide(os.uname().nodename), [SideBySide(f"n{i}") for i in range(self.count)]
        self._configure()
        self._daemon(self.head, "munged", "--foreground", "--force", f"--key-file={self.at('munge.key')}",
                     f"--socket={self.at('munge.socket')}", f"--pid-file={self.at('munge.pid')}",
                     f"--log-file={self.at('munge.log')}", f"--seed-file={self.at('munge.seed')}")
        poll(lambda: os.path.exists(self.at("munge.socket")), 10, "munged")
        self._daemon(self.head, "slurmctld", "-D", "-f", self.at("slurm.conf"))
        for i in range(self.count):
            self.start_node(i)
        try:
            poll(lambda: self.ready() or any(daemon.poll() is not None for daemon in self.daemons), 30, "the nodes")
            self.wait_ready(0)
        except RuntimeError as failed:
            raise RuntimeError(f"{failed}\n{self.logs()}") from None

    def _configure(self):
        with open(os.open(self.at("munge.key"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
            f.write(os.urandom(1024))
        user = pwd.getpwuid(os.geteuid()).pw_name
        last = self.count - 1
        if self.apart:  # ports are this cluster's alone
            port = 6817
            nodes = "\n".join(f"NodeName=n{i} NodeAddr={node.ipv4} Port={port + 1} CPUs={self.cpus} State=UNKNOWN"
                              for i, node in enumerate(self.nodes))
        else:
            port = self._free_ports(self.count + 1)
            nodes = (f"NodeName=n[0-{last}] NodeHostname={self.head.name.split('.')[0]} NodeAddr=127.0.0.1 "
                     f"Port=[{port + 1}-{port + 1 + last}] CPUs={self.cpus} State=UNKNOWN")
        head = self.head.name if self.apart else "localhost"
        with open(self.at("slurm.conf"), "w", encoding="ascii") as f:
            f.write(CONFIGURATION.format(head=head, head_address=self.head.ipv4, port=port, user=user,
                                         folder=self.folder, nodes=nodes))

    @staticmethod
    def _free_ports(count):
        """The first of `count` ports in a row on which no process listens, below those that the kernel gives out itself."""
        used = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with contextlib.suppress(FileNotFoundError), open(table, encoding="ascii") as f:
                used |= {int(line.split()[1].rpartition(":")[2], 16) for line in f if ":" in line.split()[1]}
        first = 20000 + os.getpid() % 100 * 100
        return next(port for port in range(first, 32768) if not used & set(range(port, port + count)))

    def _daemon(self, machine, *command):
        with open(self.at("daemons.log"), "ab") as log:
            daemon = machine.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                                   start_new_session=True)
        self.daemons.append(daemon)

    def start_node(self, i):
        """Starts node i's slurmd."""
        self._daemon(self.nodes[i], "slurmd", "-D", "-N", f"n{i}", "-f", self.at("slurm.conf"))

    def power_off(self, i):
        self.machines.off(i)

    def power_on(self, i):
        """A node that was powered off, or came back from its fate, takes jobs again."""
        self.machines.on(i)
        self.nodes = self.machines.nodes
        self.start_node(i)

    def states(self):
        """{node: state} as Slurm sees them: "idle", "down", …"""
        lines = self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").split("\n")
        return dict(line.split() for line in lines if line)

    def ready(self):
        states = self.states()
        return len(states) == self.count and set(states.values()) <= READY_STATES

    def wait_ready(self, seconds=30):
        poll(self.ready, seconds, f"{self.count} nodes that are ready")

    def resume(self, seconds=40):
        """Nodes that are down take jobs again; returns when all do."""
        def ready():
            for name, state in self.states().items():
                if state.rstrip("*") not in READY_STATES:  # refused while the node is still occupied with its fate
                    self.ask("scontrol", "update", f"nodename={name}", "state=resume")
            return self.ready()
        poll(ready, seconds, "nodes that take jobs again")

    def logs(self):
        """The newest lines of every daemon's log."""
        pieces = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(self.at(name), encoding="utf-8", errors="replace") as f:
                    pieces.append(f"--- {name}\n" + "".join(f.readlines()[-8:]))
        return "\n".join(pieces)

    def close(self):
        """Ends every process of the cluster, in whatever state it is, and removes its folder."""
        if self.machines:
            self.machines.close()
        if self.sweeper:
            self.sweeper.communicate()
        else:
            sweep(self.folder)
        for daemon in self.daemons:
            daemon.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- using it -----------------------------------------------------------------------------------------------------

    def at(self, name):
        return os.path.join(self.folder, name)

    def popen(self, command, env=None, **how):
        """Starts a command on the head. On separate machines nsenter stands before it: see target()."""
        return self.head.popen(command, env={**self.environment, **(env or {})}, **how)

    def target(self, process):
        """The id of what popen() was asked to start; its signals go there."""
        below = poll(lambda: machines.children(process.pid), 5, "the command's start") if self.apart else [process.pid]
        return below[0]

    def ask(self, *command, check=False):
        """The output of a command of Slurm's, or "" when it fails, which it may while its controller is busy."""
        process = self.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
        out, err = process.communicate(timeout=60)
        if check and process.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {err.strip() or out.strip()}")
        return out if process.returncode == 0 else ""

    def do(self, *command):
        """Runs a command of Slurm's that must succeed; returns its output."""
        return self.ask(*command, check=True)

    def submit(self, *arguments):
        """sbatch; the job's number."""
        return int(self.do("sbatch", "--parsable", *arguments).split(";")[0])

    def job(self, number):
        """The fields that scontrol shows of a job, as a dict; empty when there is no such job."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "-o", "show", "job", number)))

    def cancel_all(self):
        """Ends all jobs; afterwards every node is as new. False: could not."""
        jobs = self.ask("squeue", "-h", "-o", "%A").split()
        if jobs:
            self.ask("scancel", "--signal=KILL", "--full", *jobs)
            self.ask("scancel", *jobs)
        try:
            poll(lambda: not self.ask("squeue", "-h", "-o", "%A").strip(), 15, "the end of all jobs")
            self.resume(15)
        except RuntimeError:
            return False
        return True


def sweep(folder):
    """Ends all processes of the cluster in `folder` and removes it."""
    own = os.getpid()
    for _ in range(200):
        left = [pid for pid in marked(MARK, folder) if pid != own]
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def main(arguments):
    if arguments[:1] == ["--sweep"]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        sys.stdin.buffer.read()
        sweep(arguments[1])
        return 0
    count = int(arguments.pop(0)) if arguments[:1] and arguments[0].isdigit() else 2
    if arguments[:1] not in ([], ["--"]) or count < 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    reason = why_not()
    if reason:
        print(f"slurm_lab.py: {reason}", file=sys.stderr)
        return 77
    with Cluster(count) as cluster:
        if not cluster.apart:
            print(f"slurm_lab.py: nodes side by side, all with this host's name: {no_machines()}", file=sys.stderr)
        build = os.path.abspath(os.environ.get("BUILD", os.path.join(os.path.dirname(__file__), "..", "..", "build")))
        process = cluster.popen(arguments[1:] or [os.environ.get("SHELL", "/bin/sh")],
                                {"PATH": f"{build}:{search_path()}"})
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:  # the command got the signal as well
                continue


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
