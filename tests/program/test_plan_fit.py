# SPDX-License-Identifier: Apache-2.0
"""`ztrain plan --fit`: the settings with which a run fits into the memory of GPUs that are not here."""
import json
import os
import re

import pytest

from harness import DEVICE, USAGE, merged, plan_bytes

# Hundreds of plans on paper: the sanitizers see their code in the tests of train.memory_limit.
pytestmark = pytest.mark.long

LLAMA_1B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096, "rope_theta": 5e5, "tie_word_embeddings": False}
BASE = {"model": {"config": LLAMA_1B}, "data": {"seq_length": 2048}, "bf16": {"enabled": True}, "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}, "train": {"device": "cuda"}}
ROW = re.compile(r"^( *\d+)([ =*]) +([\d.]+) +(\d+) +[\d.]+ +([\d.]+) +([\d.]+) +(?:[\d.]+\.\d +)?(\d+) +(.*)$", re.M)


class Row:
    """A row of the table: milliseconds, GiB of a GPU and of a node, samples of a micro-batch; marks "=" (this spec) and "*"."""

    def __init__(self, mark, ms, device, node, micro, knobs):
        self.given, self.rounds = mark == "=", mark == "*"
        self.ms, self.device, self.node, self.micro = float(ms), float(device), float(node), int(micro)
        self.stage, self.recompute, self.optimizer, self.params, self.inputs, self.bf16 = self.knobs = knobs.split()

    def __eq__(self, other):
        return vars(self) == vars(other)


class Fit:
    """What a plan printed: its rows, the chosen one first, and the lines to paste as a mapping."""

    def __init__(self, out):
        assert max(map(len, out.splitlines())) <= 100, out
        self.out, found = out, ROW.findall(out)
        assert [int(number) for number, *_ in found] == list(range(1, len(found) + 1))
        self.rows = [Row(mark, ms, device, node, micro, knobs) for _, mark, ms, _, device, node, micro, knobs in found]
        self.lines, path = {}, []
        for line in out.split("in place of its keys of these names:\n\n")[1].splitlines():
            level, (key, value) = (len(line) - len(line.lstrip())) // 2, line.split(" # ")[0].strip().split(":")
            path[level:] = [key]
            inner = self.lines
            for section in path[:-1]:
                inner = inner.setdefault(section, {})
            if value:
                word = value.strip()
                inner[key] = json.loads(word) if word.isdigit() or word[0] == '"' else {"true": True, "false": False}.get(word, word)


def fit(folder, *more, changes=None, world=8, base=BASE):
    out = folder.ztrain("plan", "--fit", "--config", folder.spec(merged(base, changes or {}), "fit"), "--world", world, *more).out
    assert "estimated and not measured" in out
    return Fit(out)


@pytest.mark.parametrize("memory, changes", [("80GiB", {}), ("16GiB", {}), ("7GiB", {}), ("16GiB", {"zero_optimization": {
    "stage": 3, "offload_optimizer": {"device": "cpu"}}}), ("16GiB", {"activation_checkpointing": {"enabled": True}}),
    ("7GiB", {"activation_checkpointing": {"enabled": False}})])
def test_the_lines_fit_when_they_are_pasted(folder, memory, changes):
    found = fit(folder, "--memory", memory, changes=changes)
    best, accumulation = found.rows[0], found.lines["gradient_accumulation_steps"]
    assert best.device <= float(memory[:-3])
    assert found.lines["train_batch_size"] == 64 == best.micro * accumulation * 8
    # about the fastest, but offload has to gain 2 % for each part that it moves; a step that rounds differently is never the best
    assert best.ms <= 1.07 * min(row.ms for row in found.rows if not row.rounds)
    out = pasted(folder, BASE, changes, found, 8, memory)
    assert plan_bytes(out)["device"]["total"] / 2**30 == pytest.approx(best.device, abs=0.2)
    assert f"= train_micro_batch_size_per_gpu {best.micro} x gradient_accumulation_steps {accumulation} x" in out


def pasted(folder, base, changes, found, world, memory):
    """The plan of the spec with the lines: both the plan and a dry run take them under that cap, without data."""
    spec = folder.spec(merged(merged(base, changes), {**found.lines, "train": {"memory_limit": memory}, "data": {"train": folder.at("none")}}), "pasted")
    dry = folder.ztrain("--config", spec, "--dry-run", "--local-gpus", world)
    assert "# end of the run spec" in dry.out
    return folder.ztrain("plan", "--bytes", "--config", spec, "--world", world).out


def test_virtual_ranks_stay_and_their_sizes_divide(folder):
    """Micro-batch and accumulation are those of the 16 virtual ranks; nothing accumulates in bf16. Stages 1 and 2 mean the same."""
    changes = {"train": {"virtual_ranks": 16}, "train_micro_batch_size_per_gpu": 1}
    found = fit(folder, "--memory", "16GiB", changes=changes, world=4)
    assert {row.bf16 for row in found.rows} == {"-"} and {row.micro for row in found.rows} <= {1, 2, 4}
    assert "1" in {row.stage for row in found.rows} and "2" not in {row.stage for row in found.rows}
    best, accumulation = found.rows[0], found.lines["gradient_accumulation_steps"]
    assert best.micro * accumulation * 16 == 64
    out = pasted(folder, BASE, changes, found, 4, "16GiB")
    assert f"x gradient_accumulation_steps {accumulation} x virtual_ranks 16; world size 4" in out
    assert f"virtual ranks: 4 on each rank, which computes {4 * accumulation} micro-batch" in out


def test_each_row_has_its_lines(folder):
    """--row N: the lines give the row's setting, and nothing else of the output changes."""
    whole = fit(folder, "--memory", "16GiB", world=2)
    assert "row 1's lines" in whole.out and whole.lines == fit(folder, "--memory", "16GiB", "--row", 1, world=2).lines
    for number in (2, len(whole.rows)):
        found, row = fit(folder, "--memory", "16GiB", "--row", number, world=2), whole.rows[number - 1]
        assert found.rows == whole.rows and f"row {number}'s lines" in found.out and found.lines != whole.lines
        assert found.lines["train_micro_batch_size_per_gpu"] == row.micro
        assert found.lines.get("zero_optimization", {}).get("stage", 1) == int(row.stage)
    spec = folder.spec(BASE, "fit")
    done = folder.ztrain("plan", "--fit", "--config", spec, "--world", 2, "--row", 99, expect=USAGE)
    assert re.search(r"--row 99: the table has \d+ rows$", done.final_error), done


def qwen(hidden, inner, heads, kv_heads, layers, vocabulary, tied):
    return {"model_type": "qwen2", "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "num_hidden_layers": layers, "vocab_size": vocabulary, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "tie_word_embeddings": tied}


LLAMA_8B = {**LLAMA_1B, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256, "max_position_embeddings": 8192}
QWEN_1_5B = qwen(1536, 8960, 12, 2, 28, 151936, True)
QWEN_7B = qwen(3584, 18944, 28, 4, 28, 152064, False)


@pytest.mark.parametrize("model, length, world, memory, offloads, stages", [
    (LLAMA_8B, 4096, 1, "79GiB", {"optimizer"}, {1}), (QWEN_1_5B, 2048, 1, "24GiB", {"optimizer"}, {1}),
    (QWEN_7B, 2048, 2, "79GiB", set(), {3}), (QWEN_7B, 2048, 4, "79GiB", set(), {2, 3}), (LLAMA_8B, 4096, 8, "79GiB", set(), {2, 3})],
    ids=["8B-on-1", "1.5B-on-24GiB", "7B-on-2", "7B-on-4", "8B-on-8"])
def test_well_known_models_get_sensible_settings(folder, model, length, world, memory, offloads, stages):
    """One GPU offloads the optimizer alone, and at stage 1, where gradients move once in a step; from two on states are divided
    instead. The lines are taken as they are."""
    base = {**BASE, "model": {"config": model}, "data": {"seq_length": length}, "train_micro_batch_size_per_gpu": 1}
    found = fit(folder, "--memory", memory, base=base, world=world)
    zero = found.lines["zero_optimization"]
    assert {name for name in ("optimizer", "param") if f"offload_{name}" in zero} == offloads and zero["stage"] in stages
    out = pasted(folder, base, {}, found, world, memory)
    assert plan_bytes(out)["device"]["total"] <= int(memory[:-3]) * 2**30


def test_a_7b_model_fits_one_gpu_with_bf16_states(folder):
    """As LLM.Q trains it: 8 bytes a parameter on the device, no offload, listed next to the best that rounds as usual."""
    base = {**BASE, "model": {"config": QWEN_7B}, "train_micro_batch_size_per_gpu": 1}
    rows = fit(folder, base=base, world=1).rows
    states = [row for row in rows if row.bf16 == "all" and row.rounds and row.knobs[2:5] == ["gpu"] * 3]
    assert states and 8 * 7.6e9 / 2**30 < min(row.device for row in states) and not rows[0].rounds


def test_less_memory_turns_more_knobs_and_takes_longer(folder):
    times = []
    for memory in ("80GiB", "16GiB", "7GiB"):
        found = fit(folder, "--memory", memory, world=2)
        assert all(row.device <= float(memory[:-3]) for row in found.rows)
        times.append(min(row.ms for row in found.rows))
    assert times == sorted(times) and times[-1] > 1.1 * times[0]
    assert found.rows[0].node > 5  # GiB that had to move to the host


def test_train_memory_limit_and_the_gpu_are_the_caps(folder):
    assert fit(folder, changes={"train": {"memory_limit": "16GiB"}}).rows == fit(folder, "--memory", "16GiB").rows
    assert max(row.device for row in fit(folder, "--device", "l40s").rows) <= 44.4


def test_the_spec_is_among_the_rows(folder):
    found = fit(folder)
    given = [row for row in found.rows if row.given]
    assert len(given) == 1 and given[0].micro == 8 and "\n  = this spec\n" in found.out


def test_bf16_states_are_offloaded_as_well(folder):
    changes = {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    changes["checkpoint"] = {"writer": {"decoupled": False}}
    usual, small = (fit(folder, "--memory", "7GiB", changes=c, world=1) for c in ({"checkpoint": changes["checkpoint"]}, changes))
    assert small.rows[0].optimizer == "host" and small.rows[0].bf16 == "all" and not small.rows[0].rounds
    assert small.rows[0].node < 0.6 * usual.rows[0].node  # GiB of host memory: 8 instead of 18 bytes a parameter
    pasted(folder, BASE, changes, small, 1, "7GiB")


@pytest.mark.parametrize("name", ["Lion", "SGD"])
def test_other_optimizers_have_fewer_states(folder, name):
    optimizer = {"type": name, "params": {"lr": 1e-4, **({"momentum": 0.9} if name == "SGD" else {})}}
    rows, usual = (fit(folder, "--memory", "20GiB", changes=changes, world=1).rows for changes in ({"optimizer": optimizer}, {}))
    assert all(row.bf16 not in ("all", "w+g") for row in rows)
    assert rows[0].ms <= usual[0].ms and any(row.bf16 == "all" for row in usual)


def test_muon_stays_on_the_device(folder):
    """It runs neither with offload nor with states in bf16."""
    rows = fit(folder, "--memory", "40GiB", changes={"optimizer": {"type": "Muon", "params": {"lr": 1e-4}}}, world=2).rows
    assert rows and all(row.bf16 not in ("all", "w+g") and row.optimizer == row.params == "gpu" for row in rows)


def test_less_precise_states_are_listed_and_not_chosen(folder):
    found = fit(folder, "--memory", "9GiB")
    rounding = [row for row in found.rows if row.rounds]
    assert rounding and min(row.ms for row in rounding) < found.rows[0].ms and not found.rows[0].rounds
    assert "\n  * rounds differently\n" in found.out
    assert "data_types" not in found.lines
    asked = fit(folder, "--memory", "9GiB", changes={"data_types": {"grad_accum_dtype": "bf16"}})
    assert asked.rows[0].bf16 == "grads" and not asked.rows[0].rounds
    assert asked.lines["data_types"] == {"grad_accum_dtype": "bf16"}
    small = fit(folder, "--memory", "9GiB", changes={"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}})
    assert small.rows[0].bf16 == "all" and small.rows[0].ms < found.rows[0].ms
    assert small.lines["bf16"] == {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}


def test_nvme_is_the_last_resort(folder):
    """Where host memory is limited as well; nothing is written to the disk."""
    free = fit(folder, "--memory", "7GiB", world=2)
    assert all("nvme" not in row.knobs for row in free.rows)
    roomy = fit(folder, "--memory", "7GiB", "--node-memory", "1TiB", world=2)
    assert roomy.rows[0] == free.rows[0] and roomy.lines == free.lines
    tight = fit(folder, "--memory", "7GiB", "--node-memory", "20GiB", world=2)
    exact = [row for row in tight.rows if not row.rounds]
    assert all("nvme" in row.knobs for row in exact) and exact[0].ms > 1.2 * free.rows[0].ms
    assert "nvme_path: /local_nvme   # change me: a folder on the node's disk\n" in tight.out
    assert tight.lines["zero_optimization"]["offload_optimizer"] == {"device": "nvme", "nvme_path": "/local_nvme"}
    assert tight.lines["zero_optimization"]["stage"] == 3 and max(row.node for row in tight.rows) <= 20
    out = folder.ztrain("plan", "--bytes", "--config", folder.spec(merged(BASE, tight.lines)), "--world", 2).out
    assert plan_bytes(out)["disk"]["total"] == plan_bytes(out)["disk"]["states"] > 0


def on_disk(folder, what):
    os.makedirs(folder.at("disk #1"), exist_ok=True)
    away = {"device": "nvme", "nvme_path": folder.at("disk #1")}  # a comment in YAML, without quotes
    return {"zero_optimization": {"stage": 3, **{f"offload_{name}": away for name in what}}, "train_micro_batch_size_per_gpu": 16}


def test_the_disk_of_the_spec_is_searched_and_named(folder):
    found = fit(folder, "--memory", "9GiB", changes=on_disk(folder, ["optimizer"]), world=2)
    assert all("nvme" in row.knobs for row in found.rows if row.given)
    assert found.lines["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}  # which is faster, and fits
    tight = fit(folder, "--memory", "7GiB", "--node-memory", "20GiB", changes=on_disk(folder, ["optimizer"]), world=2)
    assert tight.lines["zero_optimization"]["offload_optimizer"]["nvme_path"] == folder.at("disk #1")
    assert os.listdir(folder.at("disk #1")) == [] and "change me" not in tight.out


def test_the_disk_takes_time(folder):
    """12 bytes a parameter of state are written once in a step, 4 of gradients once in a micro-batch, and both are read as
    often, but for what still is in a buffer. The ranks share the disk."""
    spec = folder.spec(merged(BASE, on_disk(folder, ["optimizer"])), "disk")

    def speed(world, *more):
        out = folder.ztrain("plan", "--speed", "--config", spec, "--world", world, *more).out
        return [float(re.search(rf"{words} +([\d.]+)", out).group(1)) for words in ("the disk is busy for", r"total +[\d.]+")]
    params = int(re.search(r"(\d+) parameters$", folder.ztrain("plan", "--config", spec).out, re.M).group(1))
    for world, rates in ((1, (6.5, 3.5)), (4, (6.5, 3.5)), (1, (20, 10))):
        more = [] if rates[0] == 6.5 else ["--assume", f"disk-read={rates[0]}GB,disk-write={rates[1]}GB"]
        busy, total = speed(world, *more)
        micro_batches = 64 / 16 / world
        whole = 1e3 * (12 + 4 * micro_batches) * params * (1e-9 / rates[0] + 1e-9 / rates[1])
        assert 0.75 * whole < busy < 1.001 * whole
        assert total >= 0.999 * busy
    assert speed(1, "--assume", "disk-read=1GB")[1] > speed(1)[1] > speed(1, "--assume", "disk-read=50GB,disk-write=50GB")[1]
    both = folder.spec(merged(BASE, on_disk(folder, ["optimizer", "param"])), "both")
    out = folder.ztrain("plan", "--speed", "--config", both).out
    assert "disk of each node, shared by 1 rank: 6.5 GB/s read, 3.5 GB/s written" in out and os.listdir(folder.at("disk #1")) == []


def test_what_fits_nowhere_ends_with_5_and_the_smallest_need(folder):
    spec = folder.spec(BASE, "fit")
    done = folder.ztrain("plan", "--fit", "--config", spec, "--world", 8, "--memory", "1GiB", expect=DEVICE)
    need = re.search(r"a rank needs at least ([\d.]+) GiB of device memory, with (\S+=\S+,? ?)+, and has 1.0 GiB", done.err)
    assert fit(folder, "--memory", f"{float(need.group(1)) + 0.06:.2f}GiB").rows
    done = folder.ztrain("plan", "--fit", "--config", spec, "--world", 8, "--memory", f"{float(need.group(1)) - 0.06:.2f}GiB",
                         expect=DEVICE)
    assert need.group(1) in done.err


def test_a_spec_that_no_setting_can_run_is_refused(folder):
    spec = folder.spec(merged(BASE, {"data": {"seq_length": 40000}}), "fit")
    done = folder.ztrain("plan", "--fit", "--config", spec, "--world", 8, expect=USAGE)
    assert "data.seq_length 40000 is longer than the model's 4096 positions" in done.final_error


def test_the_memory_of_a_node_is_a_cap_as_well(folder):
    spec = folder.spec(BASE, "fit")
    free = fit(folder, "--memory", "7GiB", world=2)
    assert min(row.node for row in free.rows) > 5
    done = folder.ztrain("plan", "--fit", "--config", spec, "--world", 2, "--memory", "7GiB", "--node-memory", "100MiB", expect=DEVICE)
    assert "a node needs at least" in done.err and "of host memory" in done.err
    halves = fit(folder, "--memory", "7GiB", "--local-gpus", 1, world=2)
    assert min(row.node for row in halves.rows) == pytest.approx(min(row.node for row in free.rows) / 2, abs=0.11)


def test_slow_links_to_the_host_cost_time(folder):
    fast, slow, poor = (min(row.ms for row in fit(folder, "--memory", "7GiB", "--assume", rate, world=2).rows)
                        for rate in ("host-link=400GB,host-memory=400GB", "host-link=2GB,host-memory=400GB",
                                     "host-link=400GB,host-memory=1GB"))
    assert slow > 1.2 * fast and poor > 1.2 * fast


@pytest.mark.parametrize("arguments, words", [
    (["plan", "--fit", "--memory", "80G"], "--memory: '80G' is not a size"),
    (["plan", "--fit", "--node-memory", "lots"], "--node-memory: 'lots' is not a size"),
    (["plan", "--fit", "--assume", "host-link=fast"], "host-link='fast' is not a rate"),
    (["plan", "--fit", "--assume", "host-disk=2GB"], "host-memory"),
    (["plan", "--fit", "--speed"], "one of the two"), (["plan", "--row", "2"], "plan --fit --row 2"),
    (["plan", "--speed", "--row", "2"], "--row is an option of plan --fit"), (["--row", "2"], "--row is an option of plan --fit"),
    (["plan", "--speed", "--node-memory", "80GiB"], "plan --fit"), (["--fit"], "ztrain plan --fit"),
    (["--memory", "80GiB"], "train.memory_limit")])
def test_wrong_questions_are_refused(folder, arguments, words):
    done = folder.ztrain(*arguments, "--config", folder.spec(), expect=USAGE)
    assert words in done.err


def test_on_one_rank_offload_is_tried_at_both_kinds_of_stages(folder):
    """Stage 1 keeps gradients on the device and moves them once in a step; from stage 2 on they move in each micro-batch."""
    for stage in (0, 3):
        rows = fit(folder, "--memory", "12GiB", changes={"zero_optimization": {"stage": stage}}, world=1).rows
        stages = {row.stage for row in rows if row.optimizer == "host" and row.params == "gpu"}
        assert "1" in stages and stages & {"2", "3"}, (stage, rows)
