#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_adapters.py: writes adapters.json and adapters.safetensors: LoRA by Hugging Face's PEFT on the golden cases, in float64.

    python3 make_adapters.py [ADAPTER ...]        makes these anew and leaves the others as they are in the files

Needs peft beside what make_golden.py and make_classifiers.py need. An adapter starts from the values that
check_adapters.py computes from its name; they are so short that B·A is exact in float32 whatever the order of its sums.

    adapters.json           config       adapter_config.json as PEFT writes it: what is the same in all
                            cases        name, golden case, `peft` of the run spec, what differs in adapter_config.json, loss,
                                         gradient norm and evaluations of 20 steps, shapes of the tensors, how far float32 and
                                         bf16 stray, the SHA-256's beginning of what merge_and_unload changes in fp32, bf16, fp16
    adapters.safetensors    NAME/grad/…  gradient of step 1's mean loss, before clipping
                            NAME/final/… after 20 steps
"""
import hashlib
import json
import re
import sys
import tempfile

import make_classifiers
import make_dropout
import make_golden
import peft
import torch
from check_adapters import HEAD, RATE, STEPS, initial_values
from make_golden import BATCH, HERE
from safetensors.torch import load_file, save_file

golden_loss_sum, classifier_loss_sum = make_golden.loss_sum, make_classifiers.loss_sum
SHORT = make_golden.STEPS
SAMPLES = SHORT * BATCH  # of a golden case's training data
QV = ["q_proj", "v_proj"]
BLOCK = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# The adapter: the golden case, `peft` of the run spec without peft_type, `model.quantization_config`.
ADAPTERS = {
    # each family: the targets of PEFT, where it has some
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {}),
    "mistral": ("mistral-window", {"lora_alpha": 16}),
    "qwen2": ("qwen2", {"r": 4}),
    "qwen3": ("qwen3-yarn", {"r": 5}),
    "phi3": ("phi3", {"r": 3, "target_modules": ["qkv_proj", "down_proj"]}),
    "phi3-longrope": ("phi3-longrope", {"r": 3, "target_modules": ["qkv_proj", "down_proj"]}),
    "granite": ("granite", {"r": 4, "target_modules": QV}),
    "smollm3": ("smollm3", {"r": 4, "target_modules": QV}),
    "olmo2": ("olmo2", {"r": 4, "target_modules": QV}),
    "olmo3": ("olmo3", {"r": 4, "target_modules": QV}),
    "glm": ("glm", {"r": 4, "target_modules": [*QV, "gate_up_proj"]}),
    "glm4": ("glm4", {"r": 4, "target_modules": [*QV, "gate_up_proj"]}),
    "ministral3": ("ministral3", {"r": 4, "target_modules": QV}),
    "gptj": ("gptj", {"r": 4}),
    "gpt_neox": ("gpt-neox", {"r": 4}),
    "phi": ("phi", {"r": 3}),
    "cohere": ("cohere", {"r": 4, "target_modules": "all-linear"}),
    "cohere2": ("cohere2", {"r": 4, "target_modules": "all-linear"}),
    "starcoder2": ("starcoder2", {"r": 4, "target_modules": [*QV, "c_fc"]}),
    "exaone4": ("exaone4", {"r": 4, "target_modules": QV}),
    "qwen3_5_text": ("qwen3.5", {"r": 4, "target_modules": "all-linear"}),
    "gemma4_text": ("gemma4", {"r": 4, "target_modules": "all-linear"}),
    "gemma4-kv": ("gemma4-kv", {"r": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
    "seed_oss": ("seed-oss", {"r": 4, "target_modules": QV}),
    "qwen3_moe": ("qwen3-moe", {"r": 4, "target_modules": QV}),
    "qwen2_moe": ("qwen2-moe", {"r": 4, "target_modules": "all-linear"}),
    "mixtral": ("mixtral", {"r": 4, "target_modules": QV}),
    "olmoe": ("olmoe", {"r": 4, "target_modules": QV}),
    "granitemoe": ("granitemoe", {"r": 4, "target_modules": "all-linear"}),
    "gpt_oss": ("gpt-oss", {"r": 4, "target_modules": "all-linear"}),
    "glm4_moe": ("glm4-moe", {"r": 4, "target_modules": QV}),
    "experts-aux": ("qwen3-moe-aux", {"r": 4, "target_modules": QV}),
    # of experts and routers, which are parameters in transformers 5
    "experts": ("qwen3-moe", {"r": 3, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}),
    "experts-beside": ("qwen2-moe", {"r": 3, "target_modules": ["v_proj", "shared_expert.up_proj", "shared_expert_gate"], "use_rslora": True,
                                     "target_parameters": ["experts.gate_up_proj", "gate.weight"],
                                     "rank_pattern": {"experts.gate_up_proj": 2}, "alpha_pattern": {"gate.weight": 2}}),
    "experts-down": ("mixtral", {"r": 4, "target_modules": ["w2", "gate", "q_proj"]}),
    "experts-stacked": ("granitemoe", {"r": 4, "target_parameters": ["experts.down_proj", "experts.gate_up_proj", "router.weight"]}),
    "experts-all-linear": ("glm4-moe", {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"}),
    "experts-turned": ("gpt-oss", {"r": 3, "target_parameters": ["experts.gate_up_proj", "experts.down_proj", "router.weight"]}),
    "gemma2": ("gemma2", {"r": 4}),
    "gemma3": ("gemma3", {"r": 4}),
    "bert": ("classify-bert", {"r": 4}),
    "gpt2-classes": ("classify-gpt2", {"r": 4}),
    "llama-classes": ("classify-llama", {"r": 4}),
    # kinds of targets
    "list": ("llama-bias", {"r": 3, "target_modules": ["self_attn.k_proj", "o_proj", "up_proj"]}),
    "expression": ("linear-rope", {"r": 3, "target_modules": r".*\.layers\.(1\.self_attn\.[qv]_proj|0\.mlp\.\w+_proj)"}),
    "whole-name": ("llama3-rope", {"r": 3, "target_modules": ["model.layers.1.mlp.gate_proj", "k_proj"]}),
    "excluded": ("llama", {"r": 3, "target_modules": BLOCK, "exclude_modules": ["layers.0.self_attn.k_proj", "up_proj"]}),
    "all-linear": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}),
    "all-linear-gpt2": ("gpt2-inner", {"r": 3, "target_modules": "all-linear"}),
    "all-linear-phi3": ("phi3", {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"}),
    "all-linear-gemma2": ("gemma2", {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"}),
    "all-linear-bert": ("classify-bert", {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"}),
    "head": ("llama", {"r": 4, "target_modules": ["lm_head", "v_proj"]}),
    "head-tied": ("qwen3", {"r": 4, "target_modules": ["lm_head", "q_proj"]}),
    "embedding": ("llama", {"r": 4, "target_modules": ["embed_tokens", "q_proj"]}),
    "embedding-tied": ("gemma3", {"r": 4, "target_modules": ["embed_tokens", "down_proj"]}),
    "embedding-pad": ("llama-pad", {"r": 4, "target_modules": ["embed_tokens", "q_proj"]}),
    "embedding-gpt2": ("gpt2-padded", {"r": 3, "target_modules": ["wte", "c_proj"]}),
    "embedding-bert": ("classify-bert", {"r": 3, "target_modules": ["word_embeddings", "key"]}),
    "save-head": ("llama", {"r": 2, "target_modules": QV, "modules_to_save": ["lm_head"]}),
    "save-embedding": ("olmo2", {"r": 2, "target_modules": QV, "modules_to_save": ["embed_tokens", "norm"]}),
    "save-gpt2": ("gpt2", {"r": 2, "modules_to_save": ["ln_f", "h.1.mlp.c_fc"]}),
    "save-tied": ("qwen2", {"r": 2, "target_modules": QV, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "save-tied-pad": ("qwen2-pad", {"r": 2, "target_modules": QV, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    # ranks, scales, blocks
    "rslora": ("qwen2", {"r": 5, "lora_alpha": 3, "use_rslora": True, "target_modules": "all-linear"}),
    "patterns": ("llama", {"r": 4, "target_modules": BLOCK,
                           "rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 6, r".*\.0\.mlp\.(gate|up)_proj": 3},
                           "alpha_pattern": {"v_proj": 3, "^model.layers.1.mlp.down_proj": 20}}),
    "patterns-rslora": ("granite", {"r": 4, "target_modules": QV, "use_rslora": True, "rank_pattern": {"v_proj": 7}}),
    "blocks": ("smollm3", {"r": 4, "target_modules": BLOCK, "layers_to_transform": [1]}),
    "block-0": ("qwen3", {"r": 4, "layers_to_transform": 0}),
    # dropout, by the masks of core/training/dropout.h
    "dropout": ("llama", {"r": 4, "lora_dropout": make_dropout.RATE, "target_modules": [*BLOCK, "lm_head"]}),
    "dropout-gpt2": ("gpt2-padded", {"r": 4, "lora_dropout": make_dropout.RATE, "target_modules": ["c_attn", "mlp.c_proj"]}),
    "dropout-phi3": ("phi3", {"r": 3, "lora_dropout": make_dropout.RATE, "target_modules": ["qkv_proj", "gate_up_proj"]}),
    "dropout-bert": ("classify-bert", {"r": 4, "lora_dropout": make_dropout.RATE,
                                       "target_modules": ["query", "key", "intermediate.dense"]}),
    # on a base of 4 bits, which bitsandbytes quantizes: model.quantization_config
    "nf4": ("llama", {"r": 4, "target_modules": "all-linear"}, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "nf4-double": ("qwen3-yarn", {"r": 3}, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}),
}
# The role of a target's tensor, by the end of its name: a mask is numbered by it.
ROLES = {"c_attn": "QKV", "qkv_proj": "QKV", "q_proj": "Q", "query": "Q", "k_proj": "K", "key": "K", "v_proj": "V", "value": "V",
         "attn.c_proj": "O", "o_proj": "O", "gate_proj": "GATE", "gate_up_proj": "GATE", "c_fc": "UP", "up_proj": "UP",
         "intermediate.dense": "UP", "mlp.c_proj": "DOWN", "down_proj": "DOWN", "lm_head": "LM_HEAD"}
NARROWER = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def file_name(name):
    """The name of a parameter of a PEFT model in adapter_model.safetensors."""
    return name.replace(".modules_to_save.default.", ".").replace(".default", "")


def members(header, enum):
    """The numbers of a C enum's members."""
    text = (HERE.parent.parent / header).read_text(encoding="utf-8")
    body = re.sub(r"/\*.*?\*/", "", re.search(rf"enum {enum} {{(.*?)}};", text, re.S)[1], flags=re.S)
    return {name: number for number, name in enumerate(re.findall(r"\w+", body))}


class Dropout(torch.nn.Module):
    """Of one target. It drops while gradients are taken, so not in evaluations."""

    def __init__(self, adapter, target):
        super().__init__()
        self.adapter = adapter
        role = next(role for end, role in ROLES.items() if target.endswith(end))
        self.kind = members("core/training/dropout.h", "dropout_kind")["DROPOUT_LORA"] + \
            members("core/model/tensor_table.h", "tensor_role")[f"ROLE_{role}" + ("_W" if role != "LM_HEAD" else "")]
        block = re.search(r"\.(\d+)\.", target)
        self.unit = int(block[1]) + 1 if block else 3  # the head follows two blocks

    def forward(self, x):
        if not torch.is_grad_enabled():
            return x
        first = self.adapter.first_sample + self.adapter.samples_done
        return x * make_dropout.mask(self.kind, self.unit, tuple(x.shape), first, self.adapter.T).to(x.dtype)


def in_files(model):
    """The parameters of a model by their names in files: transformers takes the experts' apart."""
    if not hasattr(model.config, "num_experts_per_tok"):
        return {n: t.detach() for n, t in model.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


class Adapter:
    """Behaves as the golden case, with an adapter on its model; the case's samples come again after its 8 steps."""

    def __init__(self, name):
        self.name = name
        self.base, self.peft, *quantized = ADAPTERS[name]
        self.quantized = quantized[0] if quantized else None
        self.classifies = self.base.startswith("classify-")
        self.case = (make_classifiers.Classifier if self.classifies else make_golden.Case)(self.base)
        self.case.lr = RATE
        self.first_sample = self.samples_done = 0  # of the run; of the step

    def __getattr__(self, name):
        return getattr(self.case, name)

    def samples(self, documents, first, count):
        self.first_sample, self.samples_done = first, 0
        return self.case.samples(documents, first % SAMPLES if documents is self.case.train else first, count)

    def adapted(self):
        config = peft.LoraConfig(task_type="SEQ_CLS" if self.classifies else "CAUSAL_LM", **json.loads(json.dumps(self.peft)))
        model = peft.get_peft_model(self.rounded(self.case.model()), config).eval()
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.data = torch.tensor(initial_values(self.name, file_name(name), p.numel())).reshape(p.shape)
        saved = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        names = {file_name(n) for n, p in model.named_parameters() if p.requires_grad}
        assert set(saved) == names | ({HEAD} if "ensure_weight_tying" in self.peft else set()), self.name
        return model

    def rounded(self, model):
        """The model whose linear layers but the head have the values that they have in 4 bits. A matrix is one row: 0.50 on the CPU
        dequantizes rows of 16, 32 or 96 with the scales of others, though the bytes are the same."""
        if self.quantized:
            from bitsandbytes.functional import dequantize_4bit, quantize_4bit
            double = self.quantized.get("bnb_4bit_use_double_quant", False)
            for name, module in model.named_modules():
                if isinstance(module, torch.nn.Linear) and name != "lm_head":
                    row = module.weight.data.to(self.case.store).reshape(1, -1)
                    packed, state = quantize_4bit(row, quant_type="nf4", compress_statistics=double)
                    module.weight.data = dequantize_4bit(packed, state).float().reshape(module.weight.shape)
        return model

    def model(self):
        """The adapted model, whose parameters are those that are trained."""
        model = self.adapted()
        if "lora_dropout" in self.peft:
            for target, module in model.named_modules():
                if "default" in getattr(module, "lora_A", {}):
                    module.lora_dropout["default"] = Dropout(self, target)
        everything = model.named_parameters
        model.named_parameters = lambda: [(n, p) for n, p in everything() if p.requires_grad]
        return model

    def config(self):
        """adapter_config.json as PEFT writes it for training to go on."""
        config = self.adapted().peft_config["default"].to_dict()
        config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
        none = {"target_parameters": config["target_parameters"] or None}  # a mixture of experts has an empty list
        return json.loads(json.dumps(config | none | {"peft_type": "LORA"}))

    def merged(self):
        """{dtype: {tensor of the whole model that an adapter changes: beginning of its bytes' SHA-256}}"""
        out = {}
        for name, dtype in NARROWER.items():
            before = in_files(self.case.model().to(dtype))
            model = peft.get_peft_model(self.case.model().to(dtype), self.adapted().peft_config["default"])
            state = peft.get_peft_model_state_dict(self.adapted(), save_embedding_layers=False)
            peft.set_peft_model_state_dict(model, state)
            after = in_files(model.merge_and_unload())
            out[name] = {n: hashlib.sha256(t.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
                         for n, t in after.items() if n in before and not torch.equal(t, before[n])}
        assert all(list(hashes) == list(out["fp32"]) for hashes in out.values()), self.name
        return out


def short(value):
    """Nine digits of each number."""
    if isinstance(value, dict):
        return {key: short(x) for key, x in value.items()}
    return [short(x) for x in value] if isinstance(value, list) else float(f"{value:.9g}")


def train(adapter, dtype):
    loss_sum = classifier_loss_sum if adapter.classifies else golden_loss_sum

    def counted(model, x, y, views=None):
        loss = loss_sum(model, x, y, views)
        adapter.samples_done += len(x)
        return loss

    make_golden.loss_sum = counted
    make_golden.EVAL_SAMPLES = len(adapter.validation) if adapter.classifies else 5
    make_golden.STEPS = STEPS
    run = make_golden.train(adapter, dtype)
    make_golden.STEPS = SHORT  # from which a case has its data
    return run


def make(name):
    adapter = Adapter(name)
    exact, single, half = (train(adapter, dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16))
    runs = {"fp32": [single], "bf16": [half]}
    if exact["routing"].chosen:
        for noise in range(make_golden.OTHERS):
            adapter.case.round_otherwise(noise)
            runs["bf16"].append(train(adapter, torch.bfloat16))
        flips = make_golden.routing(adapter.case, exact, runs)["routing"]
        assert not flips["flips"]["fp32"], (name, flips)
    strays = {kind: make_golden.furthest([make_golden.rounding(run, exact) | {
        "norm": max(abs(a / b - 1) for a, b in zip(run["norm"], exact["norm"])),
        "eval": max(abs(run["eval"][step] - loss) for step, loss in exact["eval"].items())} for run in made])
        for kind, made in runs.items()}
    entry = {
        "name": name, "case": adapter.base, "peft": {"peft_type": "LORA", **adapter.peft},
        "quantization_config": adapter.quantized, "config": adapter.config(),
        "loss": short(exact["loss"]), "grad_norm": short(exact["norm"]), "lr": exact["rate"], "eval_loss": short(exact["eval"]),
        "rounding": short(strays),
        "tensors": {file_name(n): list(t.shape) for n, t in exact["final"].items()},
        # merging the adapter of a tied matrix changes the other one in PEFT
        "merged": adapter.merged() if not name.endswith("-tied") and not adapter.quantized else {},
    } | ({"aux_loss": short(exact["aux"])} if any(exact["aux"]) else {})
    tensors = {f"{name}/{kind}/{file_name(n)}": t.float().contiguous()
               for kind, values in (("grad", exact["grads"]), ("final", exact["final"])) for n, t in values.items()}
    print(f"{name:18s} {len(entry['tensors']):3d} tensors  loss {exact['loss'][0]:.4f} -> {exact['loss'][-1]:.4f}  "
          f"norm {exact['norm'][0]:.2f}  fp32 {strays['fp32']['loss']:.1e} {strays['fp32']['final']:.1e}  "
          f"bf16 {strays['bf16']['loss']:.1e} {strays['bf16']['norm']:.1e} {strays['bf16']['final']:.1e}", flush=True)
    return entry, tensors


def main(wanted):
    path, weights = HERE / "adapters.json", HERE / "adapters.safetensors"
    old, tensors = {}, {}
    if wanted:
        stored = json.loads(path.read_text(encoding="utf-8"))
        old = {case["name"]: case | {"config": stored["config"] | case["config"]} for case in stored["cases"]}
        tensors = load_file(weights)
    cases = []
    for name in ADAPTERS:
        if wanted and name not in wanted:
            cases.append(old[name])
            continue
        entry, made = make(name)
        cases.append(entry)
        tensors = {n: t for n, t in tensors.items() if not n.startswith(f"{name}/")} | made
    common = {key: value for key, value in cases[0]["config"].items()
              if all(case["config"][key] == value for case in cases)}
    for case in cases:
        case["config"] = {key: value for key, value in case["config"].items() if key not in common}
    versions = {"peft": peft.__version__, "torch": torch.__version__}
    head = json.dumps(versions | {"config": common})[:-1]
    text = f"{head}, \"cases\": [\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n"
    path.write_text(text, encoding="utf-8")
    save_file({n: tensors[n] for n in sorted(tensors)}, weights)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
