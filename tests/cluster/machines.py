# SPDX-License-Identifier: Apache-2.0
"""Machines for tests: a head and some nodes on this one computer, each with a host name, process numbers, /dev/shm and
separate network, joined by a switch.

A machine is a set of Linux namespaces (network, UTS, PID, mount, IPC) around a first process that does nothing but
wait. The head's holds the switch, a bridge; a node's network card, eth0, is one end of a cable (veth) whose other end
is plugged into it. All see the same files. Nodes are nested into the head.

Nothing is left, whatever happens: the first process waits for the end of its standard input, which comes when
this program closes it or dies; the kernel then ends every process of that machine and of those nested into it, and the
networks go with them. So no clean-up has to run, no address or name can meet one that is in use, and this computer's
own network is never touched.

Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) or unprivileged user namespaces; why_not() names what is missing.
"""
import os
import shutil
import signal
import subprocess
import time

NAMESPACES = ["--mount", "--uts", "--ipc", "--net", "--pid"]
NETWORK4, NETWORK6 = "10.77.0", "fd77::"

# What a machine's first process runs: as a shell it also collects the processes whose parents have gone.
FIRST_PROCESS = """
hostname "$1" && mount --bind "$2" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && ip link set lo up || exit 1
echo ready
cat >/dev/null
"""


def why_not():
    """None where machines can be made, else the reason in a line."""
    for tool in ("unshare", "nsenter", "ip", "tc", "nft"):
        if not shutil.which(tool):
            return f"no program '{tool}' (scripts/install-deps.sh --slurm)"
    tried = subprocess.run([*_unshare(), "sh", "-c",
                            "ip link add name probe0 type bridge && ip link add name probe1 type veth && "
                            "mount -t tmpfs none /mnt"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if tried.returncode:
        return f"no namespaces of our own, which need root with CAP_SYS_ADMIN: {tried.stdout.strip()[-200:]}"
    return None


def _unshare(nested=False):
    user = [] if os.geteuid() == 0 or nested else ["--user", "--map-root-user"]
    return ["unshare", *user, *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]


def children(pid):
    """Process ids of the direct children."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Machine:
    """One machine. pid: its first process, as numbered here, outside."""

    def __init__(self, name, number, hosts, inside=None):
        self.name = name
        self.ipv4, self.ipv6 = f"{NETWORK4}.{number}", f"{NETWORK6}{number}"
        enter = inside.enter() if inside else []
        with open(f"{hosts}.{name}.log", "ab") as log:
            self.keeper = subprocess.Popen([*enter, *_unshare(inside), "sh", "-c", FIRST_PROCESS, "sh", name, hosts],
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                           start_new_session=True)
        if self.keeper.stdout.readline() != b"ready\n":
            raise RuntimeError(f"machine '{name}' did not start: see {log.name}")
        self.pid = self.keeper.pid  # down the chain of nsenter and unshare
        while (below := children(self.pid)) and not self._is_first(self.pid):
            self.pid = below[0]

    @staticmethod
    def _is_first(pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            numbers = next(line for line in f if line.startswith("NSpid:")).split()[1:]
        return len(numbers) > 1 and numbers[-1] == "1"

    def enter(self, namespaces=NAMESPACES):
        """The command line that runs what follows it on this machine (or with some of its namespaces)."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self.pid}", *user, *namespaces, f"--wd={os.getcwd()}"]

    def popen(self, command, **how):
        """Starts a command here. Its own process id is what target() finds: nsenter stands before it."""
        return subprocess.Popen([*self.enter(), *map(str, command)], **how)

    def run(self, *command):
        """Runs a command here; fails with what it said."""
        done = subprocess.run([*self.enter(), *map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"on {self.name}: {' '.join(map(str, command))}: {done.stdout.strip()}")
        return done.stdout

    def processes(self):
        """Ids, as numbered here, of all living processes of this machine, its first two aside."""
        own, found = os.stat(f"/proc/{self.pid}/ns/pid").st_ino, []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if os.stat(f"/proc/{entry}/ns/pid").st_ino == own:
                        found.append(int(entry))
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
        return sorted(set(found) - {self.pid, *children(self.pid)[:1]})

    def off(self):
        """The plug is pulled: every process is dead and the network is gone, without a word to anybody."""
        self.keeper.stdin.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.keeper.wait(30)
        self.keeper.stdout.close()

    # --- the network card ---------------------------------------------------------------------------------------------

    def slow_down(self, rate):
        """What this machine sends goes at `rate` at most: "100mbit"."""
        self.run(*"tc qdisc replace dev eth0 root tbf burst 32k latency 50ms rate".split(), rate)

    def lose(self, percent):
        """So much of what comes in, except from itself, is lost."""
        self.run("nft", "add table inet loss; add chain inet loss arriving { type filter hook input priority 0; }; "
                 f"add rule inet loss arriving iifname eth0 numgen random mod 100 < {percent} drop")


class Machines:
    """The head and `count` nodes n0, n1, …; with Machines(2) as machines: … ends them at the end."""

    def __init__(self, count, folder):
        self.folder, self.hosts = folder, os.path.join(folder, "hosts")
        self.head, self.nodes = None, []
        names = ["head"] + [f"n{i}" for i in range(count)]
        with open(self.hosts, "w", encoding="ascii") as f:
            f.write("127.0.0.1 localhost\n::1 localhost\n")
            for number, name in enumerate(names, 1):
                f.write(f"{NETWORK4}.{number} {name}\n{NETWORK6}{number} {name}-v6\n")
        try:
            self.head = Machine("head", 1, self.hosts)
            self.head.run("sh", "-ec", "ip link add switch type bridge forward_delay 0\nip link set switch up\n"
                          f"ip addr add {self.head.ipv4}/24 dev switch\n"
                          f"ip -6 addr add {self.head.ipv6}/64 dev switch nodad")
            for i in range(count):
                self.nodes.append(self._node(i))
        except BaseException:
            self.close()
            raise

    def _node(self, i):
        node = Machine(f"n{i}", i + 2, self.hosts, self.head)
        # The node's process id is given as it is numbered here, so this runs here, in the head's network.
        subprocess.run([*self.head.enter(["--net"]), "ip", "link", "add", f"to-n{i}", "type", "veth", "peer", "name",
                        "eth0", "netns", str(node.pid)], check=True)
        self.head.run("ip", "link", "set", f"to-n{i}", "master", "switch", "up")
        # docker0: an address that every node has, as where a container engine is installed: no machine can be reached by it.
        node.run("sh", "-ec", f"ip addr add {node.ipv4}/24 dev eth0\nip -6 addr add {node.ipv6}/64 dev eth0 nodad\n"
                 f"ip link set eth0 up\nip route add default via {self.head.ipv4}\n"
                 "ip link add docker0 type bridge\nip addr add 172.17.0.1/16 dev docker0\nip link set docker0 up")
        return node

    def off(self, i):
        """Node i loses power."""
        self.nodes[i].off()

    def on(self, i):
        """Node i is started again, with nothing on it."""
        end = time.monotonic() + 10
        while subprocess.run([*self.head.enter(), "ip", "link", "show", f"to-n{i}"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL).returncode == 0:
            if time.monotonic() > end:
                raise RuntimeError(f"the cable of n{i} is still there")
            time.sleep(0.02)
        self.nodes[i] = self._node(i)

    def cut(self, i):
        """Node i's cable is out: nothing comes in or goes out, and no connection is told."""
        self.head.run("ip", "link", "set", f"to-n{i}", "down")

    def mend(self, i):
        self.head.run("ip", "link", "set", f"to-n{i}", "up")

    def close(self):
        if self.head:
            self.head.off()
        for node in self.nodes:
            node.keeper.stdin.close()
            node.keeper.stdout.close()
            node.keeper.wait()
        self.head, self.nodes = None, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
