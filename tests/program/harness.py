# SPDX-License-Identifier: Apache-2.0
"""The tools of the whole-program tests: tiny models and token shards, run specs, runs of the binary, metrics.

The binary is $ZTRAIN (default build/ztrain); $ZTRAIN_TEST_SLOWNESS multiplies every time limit (instrumented builds).
"""
import collections
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ZTRAIN = os.path.abspath(os.path.join(ROOT, os.environ.get("ZTRAIN", "build/ztrain")))
OPTIONS_OF_RUNS = []  # of each run that Folder.start() starts: a file of tests sets them, as tests/emulation does
SLOWNESS = float(os.environ.get("ZTRAIN_TEST_SLOWNESS", "1"))
PATIENCE = 60  # no limit is shorter: what takes a second may take many on a busy machine

# Exit codes
FINISHED, USAGE, DATA, CHECKPOINT, DEVICE, PEER, DIVERGED, BROKEN, BUG, REQUEUE = 0, 2, 3, 4, 5, 6, 7, 8, 70, 75
INTERRUPTED = 130

VOCABULARY = 61
SEQUENCE = 24

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": 32,
        "n_embd": 32, "n_layer": 2, "n_head": 4, "activation_function": "gelu_new", "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-5, "initializer_range": 0.1}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 32,
         "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "initializer_range": 0.1}


# --- token shards -----------------------------------------------------------------------------------------------------

def documents(count, seed=1, longest=60):
    """Documents that a model can learn: each follows one of a few rules from token to token. Token 0 ends a document."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        token, step = rng.randrange(1, VOCABULARY), rng.choice([1, 2, 3])
        document = []
        for _ in range(rng.randrange(4, longest)):
            document.append(token)
            token = (token + step) % VOCABULARY or 1
        made.append(document + [0])
    return made


def write_megatron(prefix, docs, dtype="H"):
    """PREFIX.bin and PREFIX.idx as Megatron-LM writes them. dtype 'H': uint16, 'i': int32."""
    size, code = struct.calcsize(dtype), {"H": 8, "i": 4}[dtype]
    with open(f"{prefix}.bin", "wb") as f:
        for document in docs:
            f.write(struct.pack(f"<{len(document)}{dtype}", *document))
    sizes = [len(document) for document in docs]
    pointers = [0]
    for length in sizes[:-1]:
        pointers.append(pointers[-1] + length * size)
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(sizes) + 1))
        f.write(struct.pack(f"<{len(sizes)}i", *sizes))
        f.write(struct.pack(f"<{len(sizes)}q", *pointers[:len(sizes)]))
        f.write(struct.pack(f"<{len(sizes) + 1}q", *range(len(sizes) + 1)))


def write_mask(prefix, count, counts):
    """PREFIX.mask: a byte for each of `count` tokens; counts(i): whether the prediction of token i counts."""
    with open(f"{prefix}.mask", "wb") as f:
        f.write(bytes(bool(counts(i)) for i in range(count)))


def write_llmc(path, tokens, wide=False):
    """llm.c's .bin: a header of 256 int32, then uint16 (or uint32) tokens."""
    header = [20240801 if wide else 20240520, 7 if wide else 1, len(tokens)] + [0] * 253
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}{'I' if wide else 'H'}", *tokens))


# --- safetensors ------------------------------------------------------------------------------------------------------

def write_safetensors(path, tensors):
    """{name: (shape, floats)} as F32."""
    header, blob = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of one file."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header, blob = json.loads(f.read(length)), f.read()
    return {name: (entry["dtype"], entry["shape"], blob[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


# --- run specs --------------------------------------------------------------------------------------------------------

def to_yaml(value, indent=0):
    """Block YAML of nested dicts; lists and scalars as JSON, which YAML contains."""
    lines = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            lines += [" " * indent + f"{key}:", to_yaml(item, indent + 2)]
        else:
            lines.append(" " * indent + f"{key}: {json.dumps(item)}")
    return "\n".join(lines)


def merged(base, changes):
    """base with the nested dict of changes laid over it; None removes a key, a model's config is replaced as a whole."""
    out = dict(base)
    for key, value in changes.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict) and key != "config":
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


def plan_bytes(out):
    """What `ztrain plan --bytes` printed: {"device": {"total": bytes of a rank, …}, "host": …, "disk": …}; 0: not in the table."""
    head, *rows = re.search(r"^  bytes .*\n(?:  \w+(?: +\d+)+\n)+", out, re.M).group(0).splitlines()
    found = {place: collections.Counter() for place in ("device", "host", "disk")}
    for kind, *sizes in map(str.split, rows):
        for place, size in zip(head.split()[1:], sizes):
            found[place][kind] = int(size)
    return found


class Finished:
    """A run of the binary that has ended."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def final_error(self):
        """The last line on stderr that begins with 'ztrain: error: '."""
        lines = [line for line in self.err.splitlines() if "ztrain: error: " in line]
        return lines[-1] if lines else ""

    def __repr__(self):
        return f"exit {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


def write_pairs(folder, name="train", pairs=20, seed=1, longest=SEQUENCE, labels=None):
    """Pairs of which the chosen answer is of even tokens, the rejected one of odd ones, with masks and labels."""
    rng = random.Random(seed)
    docs, mask = [], b""
    for i in range(2 * pairs):
        prompt = rng.randrange(1, 4)
        answer = rng.randrange(1, longest - prompt + 1)
        docs.append([rng.randrange(1, 40) for _ in range(prompt)] + [2 * rng.randrange(1, 20) + i % 2 for _ in range(answer)])
        mask += bytes(prompt) + bytes([1] * answer)
    write_megatron(folder.at(name), docs)
    with open(folder.at(f"{name}.mask"), "wb") as f:
        f.write(mask)
    with open(folder.at(f"{name}.labels"), "wb") as f:
        f.write(struct.pack(f"<{2 * pairs}i", *(labels or [1, 0] * pairs)))
    return docs


class Folder:
    """A place for one test: data, models, run specs and the runs made from them."""

    def __init__(self, path):
        self.path = str(path)
        self.processes = []
        self.specs = 0

    def at(self, *names):
        return os.path.join(self.path, *names)

    def data(self, samples=40, seed=1, name="train"):
        """A Megatron shard with exactly `samples` packed samples of SEQUENCE tokens."""
        need, docs, total = samples * SEQUENCE + 1, [], 0
        for document in documents(10 * samples, seed):
            docs.append(document[:need - total])
            total += len(docs[-1])
            if total == need:
                break
        assert total == need
        write_megatron(self.at(name), docs)
        return self.at(name)

    def spec(self, changes=None, name="run"):
        """Writes a run spec: a tiny model, 40 training samples, 12 a step (so an epoch is 3 steps), and returns its
        path. `changes` is laid over it."""
        if not os.path.exists(self.at("train.bin")):
            self.data()
            self.data(10, seed=2, name="validation")
        base = {
            "run": {"name": name, "dir": self.at("runs"), "seed": 7},
            "model": {"config": LLAMA},
            "data": {"train": self.at("train"), "validation": self.at("validation"), "seq_length": SEQUENCE},
            "train": {"epochs": 2, "device": "cpu"},
            "train_batch_size": 12,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
            "scheduler": {"type": "Constant"},
            "steps_per_print": 1,
        }
        self.specs += 1
        path = self.at(f"{name}-{self.specs}.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(to_yaml(merged(base, changes or {})) + "\n")
        return path

    def start(self, *arguments, env=None, cwd=None, stdout=None, prefix=()):
        """Starts the binary in a new session; output goes to files, or stdout to a descriptor. prefix: a command that executes
        it."""
        number = len(self.processes)
        command = [*prefix, ZTRAIN, *map(str, arguments), *(OPTIONS_OF_RUNS if arguments[:1] == ("--config",) else [])]
        with open(self.at(f"{number}.out"), "wb") as out, open(self.at(f"{number}.err"), "wb") as err:
            process = subprocess.Popen(command, stdout=stdout or out, stderr=err, stdin=subprocess.DEVNULL, cwd=cwd or self.path,
                                       start_new_session=True, env={**os.environ, **(env or {})})
        process.number, process.started = number, time.monotonic()
        self.processes.append(process)
        return process

    def adopt(self, process):
        """Ends with the test a process that the test itself has started."""
        self.processes.append(process)

    def wait(self, process, seconds=60):
        """Waits for its end within the time limit, which a busy machine may need to be PATIENCE; returns its output."""
        try:
            process.wait(max(seconds, PATIENCE) * SLOWNESS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"still running after {seconds} s\n{self.said(process)}") from None
        return self.said(process)

    def said(self, process):
        texts = []
        for kind in ("out", "err"):
            with open(self.at(f"{process.number}.{kind}"), encoding="utf-8", errors="replace") as f:
                texts.append(f.read())
        return Finished(process.returncode, *texts, time.monotonic() - process.started)

    def ztrain(self, *arguments, expect=FINISHED, seconds=60, env=None):
        """Runs the binary to its end and checks the exit code."""
        done = self.wait(self.start(*arguments, env=env), seconds)
        assert done.code == expect, f"ztrain {' '.join(map(str, arguments))}: {done}"
        return done

    def train(self, changes=None, name="run", ranks=1, sets=(), expect=FINISHED, seconds=60, more=(), env=None):
        """Writes the spec and trains; returns the run's output."""
        arguments = ["--config", self.spec(changes, name), *more]
        if ranks > 1:
            arguments += ["--local-gpus", ranks]
        for setting in sets:
            arguments += ["--set", setting]
        return self.ztrain(*arguments, expect=expect, seconds=seconds, env=env)

    def run_folder(self, name="run"):
        return self.at("runs", name)

    def metrics(self, name="run"):
        return Metrics(self.run_folder(name))

    def checkpoints(self, name="run"):
        """Names of the published checkpoints, oldest step first."""
        top = os.path.join(self.run_folder(name), "checkpoints")
        if not os.path.isdir(top):
            return []
        names = [n for n in os.listdir(top) if re.fullmatch(r"(epoch|step)-\d+", n)]
        ages = {}
        for folder in names:
            try:
                ages[folder] = os.path.getmtime(os.path.join(top, folder))
            except FileNotFoundError:
                pass  # a newer one is complete, and this one was deleted meanwhile
        return sorted(ages, key=ages.get)

    def whole_checkpoints(self, name="run"):
        """Steps of the checkpoints that are whole, in ascending order: each has its line in metrics.jsonl, which is written
        after it was published, and its folder, which a newer one has not replaced meanwhile. Saves continue in the
        background, so a step may be done long before its checkpoint is."""
        try:
            with open(os.path.join(self.run_folder(name), "metrics.jsonl"), "rb") as f:
                lines = f.read().split(b"\n")[:-1]  # the last one may be half a line
        except FileNotFoundError:
            return []
        rows = [json.loads(line) for line in lines if line.startswith(b'{"checkpoint":')]
        return sorted({row["step"] for row in rows if os.path.exists(os.path.join(row["checkpoint"], "manifest.json"))})

    def latest(self, name="run"):
        """The folder that checkpoints/latest points at."""
        return os.path.realpath(os.path.join(self.run_folder(name), "checkpoints", "latest"))


class BadDisk:
    """A disk that fails or waits where and while a test wants it to: bad_disk.c lists the lines. `env` is for the program."""

    def __init__(self, folder):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bad_disk.c")
        library, self.lines = folder.at("bad_disk.so"), folder.at("bad_disk.lines")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        preload = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
        options = f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0".strip(":")
        self.env = {"LD_PRELOAD": preload, "ASAN_OPTIONS": options, "ZTRAIN_TEST_DISK": self.lines}

    def fails(self, *lines):
        with open(f"{self.lines}.new", "w", encoding="utf-8") as f:
            f.write("".join(f"{line}\n" for line in lines))
        os.rename(f"{self.lines}.new", self.lines)

    def works(self):
        os.remove(self.lines)


class MemoryGroup:
    """A memory cgroup in which a command runs, where this process may make one; else its data is limited (RLIMIT_DATA)."""

    def __init__(self, limit):
        self.path, self.prefix = None, ["prlimit", f"--data={limit}"]
        for top, key in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            path = os.path.join(top, f"ztrain-test-{os.getpid()}")
            if not os.path.exists(os.path.join(top, "cgroup.procs")):
                continue
            try:
                os.mkdir(path)
                self.path = path
                with open(os.path.join(path, key), "r+", encoding="ascii") as f:
                    f.write(str(limit))
            except OSError:
                self.close()
                continue
            self.prefix = ["sh", "-c", f'echo $$ >{path}/cgroup.procs && exec "$@"', "sh"]
            return

    def close(self):
        if self.path:
            wait_until(self.removed, 10, "an empty group")
            self.path = None

    def removed(self):
        try:
            os.rmdir(self.path)
        except OSError:  # its processes are still ending
            return False
        return True


class Metrics:
    """metrics.jsonl of a run."""

    def __init__(self, run_folder):
        self.path = os.path.join(run_folder, "metrics.jsonl")
        text = self._read()
        for _ in range(200):  # a run that goes on may be seen in the middle of a write
            if not text or text.endswith("\n"):
                break
            time.sleep(0.005)
            text = self._read()
        self.rows = [json.loads(line) for line in text.removesuffix("\n").split("\n") if text]

    def _read(self):
        with open(self.path, encoding="utf-8") as f:
            return f.read()

    @property
    def steps(self):
        return [row for row in self.rows if "loss" in row]

    @property
    def losses(self):
        return [row["loss"] for row in self.steps]

    @property
    def evaluations(self):
        return [row for row in self.rows if "eval_loss" in row]

    def kinds(self, key):
        return [row for row in self.rows if key in row]

    def numbers(self):
        """The values that must repeat bit for bit, in order: everything but times, memory and checkpoints."""
        kept = ("step", "epoch", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens", "targets", "eval_loss",
                "eval_tokens", "perplexity", "epoch_end", "train_loss", "hash")
        return [{key: row[key] for key in kept if key in row} for row in self.rows
                if not {"checkpoint", "resumed_from", "epoch_part", "restart", "kernels_changed"} & row.keys()]


# --- the CPU ----------------------------------------------------------------------------------------------------------

def cpu_levels():
    """The instruction-set levels of this CPU, the lowest first."""
    said = subprocess.run([ZTRAIN, "doctor"], capture_output=True, text=True, check=False).stdout
    names = ["baseline", "avx2", "avx512"]
    return names[:names.index(re.search(r"instruction sets +(\w+)", said).group(1)) + 1]


# --- ranks of a launcher ----------------------------------------------------------------------------------------------

NODES = [0, 0, 1, 1]  # ranks 0 and 2 have the agents


def free_port():
    """A port that nobody uses, and that the kernel gives nobody until a rank listens there: it is below those of
    net.ipv4.ip_local_port_range. Tests that run at the same time begin their search at different places."""
    while True:
        port = random.SystemRandom().randrange(10000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Job:
    """Ranks as a launcher starts them: node[r] is rank r's node. `absent` ranks are not started."""

    def __init__(self, folder, *arguments, nodes=NODES, arguments_of=None, env=None, env_of=None,
                 cwd_of=None, stdout_of=None, absent=()):
        self.folder, port = folder, free_port()
        self.ranks = []
        for rank, node in enumerate(nodes):
            if rank in absent:
                continue
            local = [r for r in range(len(nodes)) if nodes[r] == node]
            variables = {"RANK": rank, "WORLD_SIZE": len(nodes), "LOCAL_RANK": local.index(rank),
                         "LOCAL_WORLD_SIZE": len(local), "GROUP_RANK": node, "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": port, "ZTRAIN_JOB_SECRET": "5a" * 32}
            variables = {**{key: str(value) for key, value in variables.items()}, **(env or {}),
                         **(env_of or {}).get(rank, {})}
            self.ranks.append(folder.start(*(arguments_of or {}).get(rank, arguments), env=variables,
                                           cwd=(cwd_of or {}).get(node), stdout=(stdout_of or {}).get(rank)))

    def wait(self, seconds=60):
        """Each rank's output, once all have ended; no process of them is left."""
        done = [self.folder.wait(rank, seconds) for rank in self.ranks]
        assert [session_members(rank.pid) for rank in self.ranks] == [[] for _ in self.ranks]
        return done

    def train(self, expect=FINISHED, seconds=60):
        done = self.wait(seconds)
        assert [d.code for d in done] == [expect] * len(done), done
        return done


# --- processes and waiting --------------------------------------------------------------------------------------------

def wait_until(condition, seconds=30, what="the condition"):
    """Polls until condition() is true (returned) or the time is over."""
    end = time.monotonic() + max(seconds, PATIENCE) * SLOWNESS
    while True:
        if value := condition():
            return value
        assert time.monotonic() < end, f"{what} did not come about within {seconds} s"
        time.sleep(0.005)


def count_lines(path):
    try:
        with open(path, "rb") as f:
            return f.read().count(b"\n")
    except FileNotFoundError:
        return 0


def wait_for_steps(folder, process, steps, name="run", seconds=60):
    """Waits until metrics.jsonl has that many step lines, or the process ends."""
    path = os.path.join(folder.run_folder(name), "metrics.jsonl")

    def enough():
        if process.poll() is not None:
            return True
        try:
            with open(path, "rb") as f:
                return f.read().count(b'"loss"') >= steps
        except FileNotFoundError:
            return False
    wait_until(enough, seconds, f"step {steps}")


def wait_for_checkpoint(folder, process, after=0, name="run", seconds=60):
    """Waits until a whole checkpoint of a later step than `after` exists, from which a run that is killed now resumes; returns
    the newest one's step. The process, if there is one, must be alive until then."""
    def there():
        steps = folder.whole_checkpoints(name)
        if not steps or steps[-1] <= after:
            assert process is None or process.poll() is None, folder.said(process)
            return None
        return steps[-1]
    return wait_until(there, seconds, f"a checkpoint after step {after}")


def wait_for_words(folder, process, words):
    """Waits until a process that is still running has printed them."""
    def said():
        assert process.poll() is None, folder.said(process)
        done = folder.said(process)
        return words in done.err or words in done.out
    wait_until(said, what=f"'{words}'")


def state_of(pid):
    """The state of a process or thread, as in proc(5)."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rpartition(")")[2].split()[0]


def children(pid):
    """Process ids of the direct children, in the order they were started."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return sorted(int(word) for word in f.read().split())
    except FileNotFoundError:
        return []


def session_members(session):
    """Process ids, zombies aside, that belong to a session (each run has its own)."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as f:
                    fields = f.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry))
    return found


def shared_memory_files():
    return set(os.listdir("/dev/shm"))


def nothing_new_in_shared_memory(before):
    """Waits until all files are gone that were not there before; a program of somebody else may have made some."""
    wait_until(lambda: shared_memory_files() <= before, what="the end of all new files in /dev/shm")
