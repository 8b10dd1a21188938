# SPDX-License-Identifier: Apache-2.0
"""An error is reported in one line, with the right exit code, and before anything is written."""
import json
import os
import random
import struct
import subprocess

import pytest

from harness import (BROKEN, BadDisk, CHECKPOINT, DATA, DEVICE, GPT2, LLAMA, SEQUENCE, SLOWNESS, USAGE, VOCABULARY, ZTRAIN,
                     read_safetensors, write_megatron, write_safetensors)


def write_spec(folder, text):
    path = folder.at("broken.yaml")
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    return path


# --- command line -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments, words", [
    ([], ["--config"]),
    (["--confg", "x"], ["unknown option '--confg'; hint: did you mean --config?"]),
    (["-config=x"], ["unknown option '-config=x'; hint: did you mean --config?"]),
    (["plan", "--config", "x", "--wrold", "2"], ["did you mean --world?"]),
    (["--train.max_steps=3"], ["--set KEY=VALUE"]),
    (["--zzzzzzz"], ["hint: ztrain --help"]),
    (["--config"], ["--config"]),
    (["trian"], ["trian", "ztrain --config run.yaml"]),
    (["exprot", "x"], ["did you mean ztrain export?"]),
    (["--dry-run", "plan"], ["a command comes first: ztrain plan"]),
    (["run.yaml"], ["--config run.yaml"]),
    (["--config", "nowhere.yaml"], ["nowhere.yaml", "No such file"]),
    (["--config", "run.yaml", "--local-gpus", "0"], ["--local-gpus"]),
    (["--config", "run.yaml", "--local-gpus", "65"], ["--local-gpus must be a number from 1 to 64, not '65'; hint: srun starts more ranks than that"]),
    (["plan", "--config", "run.yaml", "--resume", "x"], ["--resume is not an option of plan"]),
    (["plan", "--config", "run.yaml", "--profile"], ["--profile is not an option of plan"]),
    (["plan", "--config", "run.yaml", "--dry-run"], ["--dry-run is not an option of plan"]),
    (["plan"], ["no run spec given; hint: ztrain plan --config run.yaml"]),
    (["--json"], ["--json is an option of --help-spec; hint: ztrain --help-spec --json"]),
    (["--config", "run.yaml", "--world", "2", "--dry-run"], ["--world", "plan"]),
    (["--config", "run.yaml", "--local-gpus", "two"], ["two"]),
    (["verify"], ["verify"]),
    (["verify", "a", "b"], ["b"]),
    (["export", "x"], ["--out"]),
    (["export", "x", "--out", "y", "--dtype", "int8"], ["int8"]),
    (["export", "x", "--uot", "y"], ["did you mean --out?"]),
    (["export", "x", "--out", "out/y.gguf"], ["folder", "--out out/y,", "llama.cpp"]),
    (["export", "x", "--out", "y.SAFETENSORS/"], ["folder", "--out y: the safetensors files"]),
    (["verify", "x", "--hlep"], ["did you mean --help?"]),
    (["inspect", "x", "--tensor"], ["did you mean --tensors?"]),
    (["inspect", "--tensor-names"], ["hint: ztrain inspect --help"]),
    (["inspect"], ["inspect"]),
    (["doctor", "now"], ["now"]),
    (["version", "now"], ["now"]),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_command_line(folder, arguments, words):
    done = folder.ztrain(*arguments, expect=USAGE)
    for word in words:
        assert word in done.err, done
    assert done.final_error.startswith("ztrain: error: ")


# --- run spec ---------------------------------------------------------------------------------------------------------

def test_every_error_of_a_spec_at_once(folder):
    path = write_spec(folder, """run:
  nam: x
data:
  train: t
  seq_length: many
  packing: 3
train_batch_size: 8
gradient_cliping: 1.0
zero_optimization:
  stage: 4
optimizer:
  type: AdamW
  params: {lr: fast, lr: 1.0}
""")
    done = folder.ztrain("--config", path, expect=USAGE)
    lines = [line for line in done.err.splitlines() if line.startswith(path + ":")]
    for place, word in (("2:3", "name"), ("5:15", "seq_length"), ("6:12", "packing"), ("8:1", "gradient_clipping"),
                        ("10:10", "stage"), ("1:1", "model"), ("13", "lr")):
        assert any(line.startswith(f"{path}:{place}") and word in line for line in lines), f"{place} {word}: {done}"
    assert all("; " in line or ":" in line for line in lines)
    assert str(len(lines)) in done.final_error


@pytest.mark.parametrize("name, text", [
    ("empty", b""),
    ("binary", bytes(random.Random(1).randrange(256) for _ in range(5000))),
    ("nul", b"run:\n  name: \0\n"),
    ("torn", b"run: {name: 'x"),
    ("tab", b"run:\n\tname: x\n"),
    ("list", b"- a\n- b\n"),
    ("scalar", b"hello\n"),
    ("two documents", b"run: {}\n---\nrun: {}\n"),
    ("deep", b"[" * 100000),
    ("deep mappings", b"".join(b" " * i + b"a:\n" for i in range(300))),
    ("cycle", b"a: &a\n  b: *a\n"),
    ("laughs", b"a: &a [x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 8)) for i in range(20))),
    ("long line", b"run: {name: '" + b"x" * 3000000 + b"'}\n"),
    ("many keys", b"".join(b"k%d: 1\n" % i for i in range(200000))),
    ("not utf-8", b"run:\n  name: \xff\xfe\xfd\n"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_files_that_are_no_run_spec(folder, name, text):
    done = folder.ztrain("--config", write_spec(folder, text), expect=USAGE, seconds=10)
    assert "broken.yaml" in done.err
    assert len(done.err) < 200000


def test_a_folder_and_a_device_as_spec(folder):
    os.makedirs(folder.at("dir.yaml"))
    folder.ztrain("--config", folder.at("dir.yaml"), expect=USAGE)
    folder.ztrain("--config", "/dev/zero", expect=USAGE, seconds=20)
    os.mkfifo(folder.at("pipe.yaml"))  # without a writer
    folder.ztrain("--config", folder.at("pipe.yaml"), expect=USAGE, seconds=20)


@pytest.mark.parametrize("changes, words", [
    ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, ["bfloat16 and fp16 modes cannot be simultaneously enabled"]),
    ({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}, ["fp16_master", "not supported yet"]),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, ["offload_optimizer to nvme needs nvme_path"]),
    ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, ["zero_quantized_weights", "not supported yet"]),
    ({"optimizer": {"type": "Lamb"}}, ["Lamb"]),
    ({"scheduler": {"type": "Cosin"}}, ["Cosin", "Cosine"]),
    ({"train_batch_size": None}, ["train_batch_size", "train_micro_batch_size_per_gpu"]),
    ({"train_micro_batch_size_per_gpu": 5}, ["train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size"]),
    ({"model": {"pretrained": "x", "config": LLAMA}}, ["pretrained", "config"]),
    ({"model": {"config": {**LLAMA, "model_type": "mamba"}}}, ["mamba"]),
    ({"model": {"config": {**LLAMA, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}}}}, ["rope_scaling.short_factor must be a list"]),
    ({"data": {"seq_length": 200}}, ["200", "64"]),
    ({"pipeline": {"stages": 2}}, ["pipeline", "zero_optimization stage 3"]),
    ({"train": {"epochs": -1}}, ["epochs"]),
], ids=lambda value: None if isinstance(value, dict) else " ".join(value)[:40])
def test_what_a_spec_asks_for_in_vain(folder, changes, words):
    done = folder.train(changes, expect=USAGE)
    for word in words:
        assert word in done.err, done
    assert not os.path.exists(folder.at("runs", "run", "checkpoints"))


def test_a_misspelt_key_of_the_model(folder):
    """It is an error in the spec, and a notice in a config.json from elsewhere."""
    config = {("hiden_size" if key == "hidden_size" else key): value for key, value in LLAMA.items()}
    words = "'hiden_size' is not a key of a llama config; hint: did you mean 'hidden_size'?"
    spec = folder.spec({"model": {"config": config}})
    assert words in folder.ztrain("plan", "--config", spec, expect=USAGE).final_error
    with open(folder.at("config.json"), "w") as file:
        json.dump(config, file)
    spec = folder.spec({"model": {"config": folder.at("config.json")}})
    assert "model: " + words in folder.ztrain("plan", "--config", spec).out


def test_a_model_config_that_contradicts_itself(folder):
    """The error is the run spec's if the config stands in the spec, else the file's."""
    config = {**LLAMA, "num_key_value_heads": 3}
    done = folder.train({"model": {"config": config}}, expect=USAGE)
    assert "num_key_value_heads" in done.final_error and "run-1.yaml" in done.final_error
    with open(folder.at("config.json"), "w") as file:
        json.dump(config, file)
    done = folder.train({"model": {"config": folder.at("config.json")}}, expect=DATA)
    assert "num_key_value_heads" in done.final_error and "config.json" in done.final_error


def test_world_size_and_batch(folder):
    done = folder.train({"train_micro_batch_size_per_gpu": 4}, ranks=2, expect=USAGE)
    assert "12 != 4 * 1 * 2" in done.err or "world_size" in done.err
    assert "--local-gpus 2" in done.err
    done = folder.train(ranks=60, expect=USAGE)
    assert "train_batch_size 12 is less than one sample on each of 60 ranks (world size 60: --local-gpus 60); hint: " \
           "the smallest train_batch_size that fits is 60; possible world sizes: 1, 2, 3, 4, 6, 12" in done.final_error


def test_cuda_on_a_machine_without(folder):
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    done = folder.train({"train": {"device": "cuda"}}, env=hidden, expect=DEVICE)
    assert "train.device" in done.final_error
    done = folder.train({"train": {"device": "auto", "epochs": 1}}, env=hidden)
    assert "cpu" in done.out.lower()


@pytest.mark.parametrize("name, meaning", [("ZTRAIN_CUDA_TF32", "fp32 products use TF32"),
                                           ("ZTRAIN_SHARE_GPUS", "ranks may share a GPU")])
def test_a_switch_in_the_environment_is_1_or_0(folder, name, meaning):
    """Checked whether there is a GPU or not: a switch that is silently off would be a run with other numbers."""
    spec = folder.spec({"train": {"device": "cuda"}})
    done = folder.ztrain("--config", spec, "--local-gpus", 2, env={"CUDA_VISIBLE_DEVICES": "", name: "yes"}, expect=USAGE)
    assert done.err.count(f"{name} is 'yes'; hint: 1 ({meaning}) or 0") == 1, done
    for value in ("0", "1", ""):
        folder.ztrain("--config", spec, env={"CUDA_VISIBLE_DEVICES": "", name: value}, expect=DEVICE)


# --- data -------------------------------------------------------------------------------------------------------------

def damaged(folder, kind):
    """Makes a training shard with one fault; returns its file name and the words of the message."""
    prefix = folder.at("bad")
    tokens = [1 + i % 50 for i in range(40 * SEQUENCE)]
    write_megatron(prefix, [tokens])
    if kind == "missing":
        os.remove(prefix + ".bin")
        os.remove(prefix + ".idx")
    elif kind == "no index":
        os.remove(prefix + ".idx")
        return ".idx"
    elif kind == "empty":
        open(prefix + ".bin", "wb").close()
    elif kind == "truncated":
        os.truncate(prefix + ".bin", len(tokens))
    elif kind == "truncated index":
        os.truncate(prefix + ".idx", 30)
        return "bad.idx"
    elif kind == "foreign index":
        with open(prefix + ".idx", "r+b") as f:
            f.write(b"PK\3\4 not an index")
        return "bad.idx"
    elif kind == "sizes that overflow":
        with open(prefix + ".idx", "r+b") as f:
            f.seek(18)
            f.write(struct.pack("<Q", 1 << 62))
        return "bad.idx"
    elif kind == "too short":
        write_megatron(prefix, [tokens[:100]])
        return "data.train"
    return "bad"


@pytest.mark.parametrize("kind", ["missing", "no index", "empty", "truncated", "truncated index", "foreign index",
                                  "sizes that overflow", "too short"])
def test_damaged_shards(folder, kind):
    folder.spec()
    name = damaged(folder, kind)
    done = folder.train({"data": {"train": folder.at("bad")}}, expect=DATA)
    assert name in done.final_error, done


@pytest.mark.parametrize("header", [b"", b"\0" * 1024, struct.pack("<256i", 20240520, 7, 1 << 30, *[0] * 253),
                                    struct.pack("<256i", 20240520, 99, 10, *[0] * 253) + bytes(20)])
def test_damaged_llmc_shards(folder, header):
    folder.spec()
    with open(folder.at("bad.bin"), "wb") as f:
        f.write(header)
    done = folder.train({"data": {"train": folder.at("bad.bin")}}, expect=DATA)
    assert "bad.bin" in done.final_error


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("which", ["train", "validation"])
def test_a_token_outside_the_vocabulary(folder, which, ranks):
    folder.spec()
    tokens = [1 + i % 50 for i in range(200 * SEQUENCE + 1)]
    tokens[4201] = VOCABULARY
    write_megatron(folder.at("bad"), [tokens])
    done = folder.train({"data": {which: folder.at("bad"), "shuffle": False}}, ranks=ranks, expect=DATA)
    for word in ("bad.bin", str(2 * 4201), str(VOCABULARY)):
        assert word in done.err, done
    if ranks == 2:
        assert "rank" in done.err and os.uname().nodename in done.err


def test_shards_of_another_vocabulary_are_found_before_the_first_step(folder):
    """A validation set is read only at the first evaluation, which would be too late to find out."""
    folder.spec()
    write_megatron(folder.at("other"), [[1 + i % 50, VOCABULARY + 7] for i in range(40 * SEQUENCE)])
    done = folder.train({"data": {"validation": folder.at("other")}}, expect=DATA)
    assert "other.bin" in done.final_error and "step 1" not in done.out + done.err


def test_a_run_spec_that_cannot_be_read_twice(folder):
    """The supervisor keeps its text for the ranks."""
    path, pipe = folder.spec({"train": {"epochs": 1}}), folder.at("pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # so that the spec is in the pipe before it is read
    with open(path, "rb") as spec, open(pipe, "wb") as writer:
        writer.write(spec.read())
    folder.ztrain("--config", pipe, "--local-gpus", 2)
    os.close(reader)
    assert len(folder.metrics().steps) == 3


def test_without_proc(folder):
    disk = BadDisk(folder)
    disk.fails("access EACCES /proc/self/exe")
    for more in ([], ["--local-gpus", 2]):
        done = folder.ztrain("--config", folder.spec(), *more, env=disk.env, expect=DEVICE)
        assert "/proc is not mounted: cannot find '/proc/self/exe'" in done.final_error and "mount -t proc" in done.final_error
    assert not os.path.exists(folder.run_folder())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_library_that_ends_the_process(folder, ranks):
    """Its exit(1) is not taken for a lack of memory, and neither is a run that ends so for one that is finished."""
    disk = BadDisk(folder)
    disk.fails("pread exit train.bin")
    more = ["--local-gpus", 2] if ranks > 1 else []
    done = folder.ztrain("--config", folder.spec(), *more, env=disk.env, expect=BROKEN)
    assert "bad_disk.so' ended the process with exit code 1" in done.err and "out of memory" not in done.err, done


def test_far_more_threads_than_cores(folder):
    cores, wish = len(os.sched_getaffinity(0)), 2 * len(os.sched_getaffinity(0)) + 1
    done = folder.train({"train": {"epochs": None, "max_steps": 1}}, ranks=2, env={"OMP_NUM_THREADS": str(wish)})
    each = max(cores // 2, 1)
    warnings = [line for line in done.err.splitlines() if "OMP_NUM_THREADS" in line]
    assert len(warnings) == 1 and f"OMP_NUM_THREADS {wish} is far above the {each} core" in warnings[0], done


# --- models -----------------------------------------------------------------------------------------------------------

@pytest.fixture
def weights(folder):
    """A Hugging Face folder with an untrained model, its tensors, and a function that writes changed ones."""
    folder.train({"train": {"max_steps": 1}, "model": {"config": GPT2}}, name="seed")
    folder.ztrain("export", folder.run_folder("seed"), "--out", folder.at("hf"), "--dtype", "fp32")
    path = folder.at("hf", "model.safetensors")
    tensors = {name: (shape, struct.unpack(f"<{len(raw) // 4}f", raw))
               for name, (_, shape, raw) in read_safetensors(path).items()}

    def write(changed):
        write_safetensors(path, changed)
    return tensors, write


def load(folder, expect=DATA):
    return folder.train({"model": {"config": None, "pretrained": folder.at("hf")}, "train": {"max_steps": 1}}, expect=expect)


def test_a_missing_tensor(folder, weights):
    tensors, write = weights
    del tensors["transformer.h.1.mlp.c_fc.bias"]
    write(tensors)
    assert "h.1.mlp.c_fc.bias" in load(folder).final_error


def test_an_extra_tensor(folder, weights):
    tensors, write = weights
    tensors["transformer.h.1.mlp.c_gate.bias"] = ([2], [0.0, 0.0])
    write(tensors)
    assert "c_gate.bias" in load(folder).final_error


def test_a_misshapen_tensor(folder, weights):
    tensors, write = weights
    shape, values = tensors["transformer.h.0.attn.c_attn.weight"]
    tensors["transformer.h.0.attn.c_attn.weight"] = (shape[::-1], values)
    write(tensors)
    done = load(folder)
    assert "h.0.attn.c_attn.weight" in done.final_error and "96" in done.final_error


def test_tensors_to_skip_and_names_of_the_hub(folder, weights):
    tensors, write = weights
    plain = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    plain["h.0.attn.bias"] = ([1, 1, 4, 4], [1.0] * 16)
    plain["h.0.attn.masked_bias"] = ([], [-1e4])
    write(plain)
    load(folder, expect=0)


@pytest.mark.parametrize("damage", ["cut", "header cut", "header too long", "no json", "hole", "missing", "config missing",
                                    "config torn", "config deep"])
def test_damaged_model_files(folder, weights, damage):
    path, config = folder.at("hf", "model.safetensors"), folder.at("hf", "config.json")
    with open(path, "rb") as f:
        raw = f.read()
    (length,) = struct.unpack("<Q", raw[:8])
    name = "model.safetensors"
    if damage == "cut":
        os.truncate(path, len(raw) - 1)
    elif damage == "header cut":
        os.truncate(path, 100)
    elif damage == "header too long":
        with open(path, "r+b") as f:
            f.write(struct.pack("<Q", 1 << 60))
    elif damage == "no json":
        with open(path, "r+b") as f:
            f.seek(8)
            f.write(b"[" * 200)
    elif damage == "hole":
        header = json.loads(raw[8:8 + length])
        entry = header["transformer.wpe.weight"]
        entry["data_offsets"] = [value + 4 for value in entry["data_offsets"]]
        text = json.dumps(header).encode()
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + raw[8 + length:])
    elif damage == "missing":
        os.remove(path)
        name = "hf"
    else:
        name = "config.json"
        if damage == "config missing":
            os.remove(config)
        else:
            with open(config, "w", encoding="utf-8") as f:
                f.write('{"model_type": "gpt' if damage == "config torn" else "[" * 100000)
    done = load(folder)
    assert name in done.final_error, done


def test_a_checkpoint_of_another_model(folder):
    folder.train({"model": {"config": GPT2}, "train": {"epochs": 1}}, name="gpt2")
    done = folder.train({"train": {"epochs": 2}}, more=["--resume", folder.run_folder("gpt2")], expect=USAGE)
    assert "model" in done.err


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_folder_that_cannot_be(folder, resume):
    """The spec names an impossible place; that is found before anything is loaded, and ends with 2."""
    more = []
    if resume:
        folder.train({"train": {"max_steps": 1, "epochs": None}}, name="other")
        more = ["--resume", folder.run_folder("other")]
    for name, words in (("file", "is not a folder"), ("link", "is a broken link")):
        if name == "file":
            with open(folder.at(name), "w", encoding="utf-8") as f:
                f.write("a file where a folder should be")
        else:
            os.symlink(folder.at("nowhere"), folder.at(name))
        done = folder.train({"run": {"dir": folder.at(name, "runs")}}, more=more, expect=USAGE)
        assert folder.at(name) + "' " + words in done.final_error and "run.dir" in done.final_error, done
    if os.geteuid() == 0:
        return  # may write everywhere
    os.mkdir(folder.at("closed"), 0o500)
    done = folder.train({"run": {"dir": folder.at("closed", "runs")}}, more=more, expect=USAGE)
    assert "may not be written by this user" in done.final_error, done


@pytest.mark.parametrize("what", ["owner", "run.yaml", "log", "metrics.jsonl"])
def test_a_disk_that_takes_no_files_of_the_run(folder, what):
    """It ends with 4, as for a checkpoint that cannot be written: the spec is right. A limit on file size stands in for a
    full disk."""
    os.makedirs(folder.run_folder())
    limit = {"owner": "0", "run.yaml": "1"}.get(what, "unlimited")
    if what == "log":
        with open(folder.at("runs", "run", "log"), "w", encoding="utf-8"):
            pass
    elif what == "metrics.jsonl":
        os.symlink(folder.at("nowhere", "else"), folder.at("runs", "run", "metrics.jsonl"))
    done = subprocess.run(["bash", "-c", f"trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"", ZTRAIN, "--config", folder.spec()],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == CHECKPOINT and what in done.stderr, done


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("why, changes, code", [
    ("batch", {"train_batch_size": 13, "train_micro_batch_size_per_gpu": 2}, USAGE),
    ("model", {"data": {"seq_length": 200}}, USAGE),
    ("data", {"data": {"train": "nowhere"}}, DATA),
    ("weights", {"model": {"config": None, "pretrained": "torn"}}, DATA),
    ("resume", None, CHECKPOINT),
])
def test_a_refused_start_leaves_nothing(folder, why, changes, code, ranks):
    """A start that is refused leaves neither a run folder nor a log, so a second attempt meets the same state as the first."""
    if why == "weights":
        os.mkdir(folder.at("torn"))
        with open(folder.at("torn", "config.json"), "w", encoding="utf-8") as f:
            json.dump(LLAMA, f)
        write_safetensors(folder.at("torn", "model.safetensors"), {"model.norm.weight": ([32], [1.0] * 32)})
    more = ["--resume", folder.at("nowhere")] if why == "resume" else []
    folder.train(changes, ranks=ranks, more=more, expect=code)
    assert not os.path.exists(folder.at("runs"))


def test_a_full_disk_while_writing_a_checkpoint(folder):
    """A limit on file size stands in for the disk: the run ends with 4, and the checkpoint before stays valid."""
    folder.train({"train": {"epochs": 1}, "checkpoint": {"interval_steps": 1}})
    spec = folder.spec({"train": {"epochs": 2}, "checkpoint": {"compression_level": 0, "retry_seconds": 1}})
    command = "ulimit -f 8; exec \"$0\" \"$@\""
    done = subprocess.run(["bash", "-c", command, ZTRAIN, "--config", spec, "--resume", folder.run_folder()],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == CHECKPOINT, done
    assert "epoch-0002" in done.stderr or "rank-00000" in done.stderr
    folder.ztrain("verify", folder.run_folder())
    assert os.path.basename(folder.latest()) == "epoch-0001"


def test_shared_memory_beyond_the_limit_of_file_sizes(folder):
    done = subprocess.run(["bash", "-c", "ulimit -f 8; exec \"$0\" \"$@\"", ZTRAIN, "--config", folder.spec(),
                           "--local-gpus", "2"], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == DEVICE and "shared memory" in done.stderr, done


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_are_not_taken_by_files(folder, closed, ranks):
    command = f'exec "$0" "$@" {closed}'
    subprocess.run(["sh", "-c", command, ZTRAIN, "--config", folder.spec(), *["--local-gpus", "2"][:2 * (ranks > 1)]],
                   timeout=60, check=True)
    assert len(folder.metrics().steps) == 6
    folder.ztrain("verify", folder.run_folder())


@pytest.mark.parametrize("ranks", [1, 2])
def test_threads_that_cannot_be_started(folder, ranks):
    """Stacks have 1 GB, and there is room for one: no library ends the process with another code."""
    if SLOWNESS > 1:
        return  # an instrumented build's own mappings are over any limit
    command = "ulimit -s 1000000; ulimit -v 1700000; exec \"$0\" \"$@\""
    done = subprocess.run(["bash", "-c", command, ZTRAIN, "--config", folder.spec(),
                           *["--local-gpus", "2"][:2 * (ranks > 1)]],
                          stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == DEVICE and "thread" in done.stderr, done


# --- terminals --------------------------------------------------------------------------------------------------------

def test_a_terminal_obeys_nothing_from_outside(folder):
    """Control characters in names of folders, of tensors and in a config.json are shown; none reaches the terminal."""
    wild = "r\x1b]0;mine\x07\x9b2J"
    spec = folder.spec({"run": {"dir": folder.at(wild)}, "train": {"max_steps": 1, "epochs": None}})
    run = folder.at(wild, "run")
    said = [folder.ztrain("--config", spec, "--dry-run"), folder.ztrain("--config", spec, "--local-gpus", 2),
            folder.ztrain("--config", spec, expect=USAGE)]
    said += [folder.ztrain(command, run) for command in ("verify", "inspect")]
    said.append(folder.ztrain("export", run, "--out", folder.at(wild, "hf\x7f")))
    with open(os.path.join(run, "checkpoints", "latest", "rank-00000.zst"), "ab") as f:
        f.write(b"more")
    said.append(folder.ztrain("verify", run, expect=CHECKPOINT))
    weights = folder.at(wild, "hf\x7f", "model.safetensors")
    write_safetensors(weights, {"\x1b[31mname": ([1], [0.0])})
    spec = folder.spec({"model": {"config": None, "pretrained": os.path.dirname(weights)}})
    said.append(folder.ztrain("--config", spec, expect=DATA))
    spec = folder.spec({"model": {"config": {**LLAMA, "model_type": "\x1b[31mmamba"}}})
    said.append(folder.ztrain("--config", spec, "--set", "\x1b[33m=1", expect=USAGE))
    said.append(folder.ztrain("\x1b[34m", expect=USAGE))
    with open(os.path.join(run, "log", "rank-00001.log"), encoding="utf-8") as f:
        texts = [f.read()]
    for done in said:
        texts += [done.out, done.err]
        assert "\\x1b" in done.out + done.err or "\\u001b" in done.out + done.err, done
    for text in texts:
        assert not [c for c in text if c != "\n" and (c < " " or "\x7f" <= c < "\xa0")], repr(text)
