#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make preferences/: what TRL's trainers compute of preference losses, reward models and, with torch, of distillation.

    python3 make_preferences.py [CASE ...]    makes these anew and leaves the others as they are in the files

Needs trl and peft beside what make_golden.py needs. TRL's trainers run whole (data, collation, loss, AdamW), in file order and
in float64; a second computation, of unpadded documents by the published formulas, must agree in every figure.

    preferences/model, reference, reward    models to start from, the reference of some cases, a model with one label
    preferences/pairs.*, examples.*         documents with mask and labels; examples are those of KTO, with uneven labels
    preferences/run.yaml                    the run spec, to be used from the repository's root
    preferences/figures.json                cases: settings, the figures of ten steps and, under `eval`, of the training data
                                            after these; `by_batch`: of other micro-batches where these matter; `rounding`: how
                                            far the same run strays in float32, and in bf16; logps: log-probabilities of the
                                            documents' answers under model and reference
    preferences/final.safetensors           CASE/TENSOR: some of the final weights
"""
import copy
import json
import os
import pathlib
import sys
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
               "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"}

import datasets
import make_golden
import numpy as np
import peft
import tokenizers
import torch
import transformers
import trl
import trl.kernels.chunked_logprob
from check_adapters import initial_values
from make_adapters import file_name, short
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers.models.llama import modeling_llama
from trl.experimental import cpo, orpo

PLACE = make_golden.HERE / "preferences"
STEPS, BATCH, RATE, EPS = 10, 6, 0.003, 1e-6
VOCAB, END, LONGEST = 61, 1, 32
# The tokens of prompt, chosen and rejected answer, which END ends.
LENGTHS = [(1, 5, 3), (4, 1, 6), (3, 7, 1), (6, 4, 4), (2, 22, 2), (8, 3, 19), (1, 1, 2), (5, 9, 9), (12, 2, 3), (3, 3, 12),
           (7, 16, 5), (2, 4, 8), (10, 6, 1), (1, 30, 7), (4, 8, 2), (9, 5, 5), (6, 2, 17), (3, 11, 4)]
KEPT = ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"]
LORA = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
# The case: the keys of `preference` in the run spec, the model of the reference, what else is special.
CASES = {
    "sigmoid": (dict(loss="sigmoid"), "model", {"whole": True}),
    "sigmoid-smoothed": (dict(loss="sigmoid", label_smoothing=0.1), "model", {}),
    "sigmoid-reference": (dict(loss="sigmoid", beta=0.15), "reference", {}),
    "sigmoid-smoothed-reference": (dict(loss="sigmoid", beta=0.4, label_smoothing=0.1), "reference", {}),
    "sigmoid-rpo": (dict(loss="sigmoid", rpo_alpha=0.7), "model", {}),
    "sigmoid-lora": (dict(loss="sigmoid", beta=0.2), "adapter-off", {"peft": LORA}),
    "ipo": (dict(loss="ipo", beta=0.3), "model", {}),
    "ipo-reference": (dict(loss="ipo"), "reference", {}),
    "hinge": (dict(loss="hinge", beta=0.05), "reference", {}),
    "robust": (dict(loss="robust", beta=0.15), "reference", {}),
    "robust-smoothed": (dict(loss="robust", beta=0.3, label_smoothing=0.1), "reference", {}),
    "apo_zero": (dict(loss="apo_zero", beta=0.2), "reference", {}),
    "apo_down": (dict(loss="apo_down", beta=0.2), "reference", {}),
    "simpo": (dict(loss="simpo", beta=2.0, gamma=1.0), "none", {}),
    "simpo-smoothed": (dict(loss="simpo", beta=2.0, label_smoothing=0.1), "none", {}),
    "simpo-rpo": (dict(loss="simpo", beta=2.5, rpo_alpha=0.5), "none", {}),
    "orpo": (dict(loss="orpo", beta=0.3), "none", {}),
    "kto": (dict(loss="kto"), "model", {}),
    "kto-weights": (dict(loss="kto", beta=0.3, desirable_weight=1.5, undesirable_weight=0.75), "reference", {}),
    "reward": ({}, "none", {"task": "reward"}),
    "distill": ({}, "reference", {"distill": dict(temperature=2.0, alpha=0.7), "top_k": VOCAB}),
    "distill-top-8": ({}, "reference", {"distill": dict(temperature=1.5, alpha=0.4), "top_k": 8}),
}
DEFAULTS = dict(beta=0.1, label_smoothing=0.0, gamma=0.5, rpo_alpha=0.0, desirable_weight=1.0, undesirable_weight=1.0)
METRICS = [f"{kind}/{part}" for kind in ("rewards", "logps") for part in ("chosen", "rejected")]
NARROW = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Shard:
    """Documents as (tokens, length of the prompt, label), pairs of neighbours."""

    def __init__(self, name):
        self.name = name
        rng = np.random.default_rng(3300)
        follow = rng.permutation(np.arange(2, VOCAB))

        def grown(tokens, length, order):
            """With `length` more tokens, which follow from each other for the most part if there is an order."""
            tokens = list(tokens)
            for _ in range(length):
                chained = order and tokens and rng.random() < 0.7
                tokens.append(int(follow[tokens[-1] - 2] if chained else rng.integers(2, VOCAB)))
            return tokens

        self.documents = []
        for prompt, *answers in LENGTHS:
            start = grown([], prompt, True)
            self.documents += [(grown(start, length - 1, i == 0) + [END], prompt, 1 - i) for i, length in enumerate(answers)]
        assert max(len(tokens) for tokens, _, _ in self.documents) < LONGEST
        if name == "examples":  # of a step's six all, and of some micro-batches all, may have one label
            order = rng.permutation(len(self.documents))
            self.documents = [self.documents[i] for i in order]
            wanted = [d for d in self.documents if d[2]]
            self.documents = wanted[:6] + [d for d in self.documents if d not in wanted[:6]]

    def rows(self):
        """What TRL's trainers take: text, of which the tokenizer makes the tokens."""
        def text(tokens):
            return "".join("</s>" if t == END else f" t{t}" for t in tokens)

        halves = [(text(d[0][:d[1]])[1:], text(d[0][d[1]:]), bool(d[2])) for d in self.documents]
        if self.name == "examples":
            return [dict(prompt=p, completion=c, label=label) for p, c, label in halves]
        return [dict(prompt=p, chosen=c, rejected=r) for (p, c, _), (_, r, _) in zip(halves[::2], halves[1::2])]

    def write(self):
        make_golden.write_tokens(PLACE / self.name, [tokens for tokens, _, _ in self.documents])
        make_golden.write_mask(PLACE / self.name, [[int(i >= prompt) for i in range(len(tokens))]
                                                   for tokens, prompt, _ in self.documents])
        np.array([label for _, _, label in self.documents], "<i4").tofile(PLACE / f"{self.name}.labels")

    def mismatched(self, group):
        """Each prompt with the completion before it, in groups of so many documents, as KTO has them."""
        out = []
        for i, (tokens, prompt, label) in enumerate(self.documents):
            first = i - i % group
            other, skipped, _ = self.documents[i - 1 if i > first else min(first + group, len(self.documents)) - 1]
            out.append((tokens[:prompt] + other[skipped:], prompt, label))
        return out


def tokenizer():
    words = {"<pad>": 0, "</s>": END} | {f"t{i}": i for i in range(2, VOCAB)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>")


def model_of(name, dtype):
    """model, reference (its weights a little changed, as of a run before) or reward, exact in bf16."""
    config = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=40, rms_norm_eps=1e-6, tie_word_embeddings=False,
                  rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    kind = transformers.AutoModelForCausalLM
    if name == "reward":
        config |= dict(num_labels=1, pad_token_id=0)
        kind = transformers.AutoModelForSequenceClassification
    full = transformers.AutoConfig.for_model("llama", **config)
    full._attn_implementation = "eager"
    model = kind.from_config(full)
    weights, change = torch.Generator().manual_seed(3301), torch.Generator().manual_seed(3302)
    for parameter in model.parameters():
        values = torch.randn(parameter.shape, generator=weights) * 0.25 + (parameter.dim() == 1)
        if name == "reference":
            values += 0.03 * torch.randn(parameter.shape, generator=change)
        parameter.data = values.bfloat16().to(dtype)
    return model.to(dtype).eval()


def write_model(name):
    folder, model = PLACE / name, model_of(name, torch.bfloat16)
    folder.mkdir(exist_ok=True)
    keep = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "rope_parameters", "hidden_act", "model_type"]
    config = {key: value for key, value in model.config.to_dict().items() if key in keep}
    config["architectures"] = [type(model).__name__]
    if name == "reward":
        config |= {"pad_token_id": 0, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, folder / "model.safetensors",
              metadata={"format": "pt"})


def compute_exactly(exact):
    """What TRL and transformers compute in float32 by name is computed in float64."""
    for module in (trl.kernels.chunked_logprob, modeling_llama):
        module.torch = make_golden.Doubles() if exact else torch
    torch.Tensor.float = torch.Tensor.double if exact else make_golden.FLOAT


def log_probabilities(model, documents, temperature=1.0):
    """Of each document alone, for each target: the log-probabilities of all tokens; the targets; whether it counts."""
    for tokens, prompt, _ in documents:
        logits = model(input_ids=torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
        counts = torch.arange(1, len(tokens)) >= prompt
        yield torch.log_softmax(logits.double() / temperature, -1), torch.tensor(tokens[1:]), counts


def sums(model, documents):
    """Of each document: the sum over its answer, how many tokens that has, the sum over all of its tokens, and how many."""
    rows = []
    for table, targets, counts in log_probabilities(model, documents):
        logps = table.gather(1, targets[:, None])[:, 0]
        rows.append(torch.stack([logps[counts].sum(), counts.sum(), logps.sum(), torch.tensor(len(logps))]))
    return torch.stack(rows).unbind(1)


class Case:
    def __init__(self, name):
        self.name = name
        self.preference, self.reference, self.more = CASES[name]
        self.loss = self.preference.get("loss", self.more.get("task", "distill"))
        self.__dict__ |= DEFAULTS | {key: value for key, value in self.preference.items() if key != "loss"}
        self.shard = Shard("examples" if self.loss == "kto" else "pairs")
        self.start = "reward" if self.loss == "reward" else "model"
        held = {"adapter-off": "model", "none": None}.get(self.reference, self.reference)
        compute_exactly(True)
        self.held = held and model_of(held, torch.float64)
        if self.held:
            self.held_sums = sums(self.held, self.shard.documents)[0].detach()

    def batches(self):
        """(micro-batch, ranks) whose figures differ, the whole batch first."""
        if self.loss == "kto":
            return [(6, 1), (3, 1), (2, 1), (3, 2), (2, 3)]
        return [(6, 1), (3, 1), (2, 1), (1, 1)] if self.rpo_alpha or self.loss == "orpo" else [(6, 1)]

    # The second computation.
    def pairs(self, model, chosen):
        """Per pair the loss, the rewards and log-probabilities of both, and what the whole micro-batch has in common."""
        lp, count, whole, tokens = sums(model, [self.shard.documents[2 * i + j] for j in (0, 1) for i in chosen])
        half, sigma = len(chosen), functional.logsigmoid
        if self.loss in ("simpo", "orpo"):
            lp_mean = lp / count
            c, r = lp_mean.split(half)
        else:
            kept = self.held_sums[[2 * i + j for j in (0, 1) for i in chosen]]
            c, r = (lp - kept).split(half)
        d, e, beta = c - r, self.label_smoothing, self.beta
        losses = {
            "sigmoid": lambda: -(1 - e) * sigma(beta * d) - e * sigma(-beta * d),
            "robust": lambda: (-(1 - e) * sigma(beta * d) + e * sigma(-beta * d)) / (1 - 2 * e),
            "hinge": lambda: (1 - beta * d).clamp(min=0),
            "ipo": lambda: (c / count[:half] - r / count[half:] - 1 / (2 * beta)) ** 2,
            "apo_zero": lambda: 1 - torch.sigmoid(beta * c) + torch.sigmoid(beta * r),
            "apo_down": lambda: torch.sigmoid(beta * c) + 1 - torch.sigmoid(beta * d),
            "simpo": lambda: -(1 - e) * sigma(beta * d - self.gamma) - e * sigma(self.gamma - beta * d),
            "orpo": lambda: -beta * sigma(d - torch.log(-torch.expm1(c)) + torch.log(-torch.expm1(r))),
        }[self.loss]()
        nll = -lp[:half].sum() / count[:half].sum() * self.rpo_alpha
        if self.loss == "orpo":
            nll = -whole[:half].sum() / tokens[:half].sum()
        logps = lp_mean if self.loss in ("simpo", "orpo") else lp
        return losses + nll, {"rewards/chosen": beta * c, "rewards/rejected": beta * r, "logps/chosen": logps[:half],
                              "logps/rejected": logps[half:], "rewards/accuracies": (c > r + 1e-9).double(),
                              "rewards/margins": beta * d}

    def examples(self, model, chosen, group):
        lp = sums(model, [self.shard.documents[i] for i in chosen])[0]
        other = [self.shard.mismatched(group)[i] for i in chosen]
        kl = (sums(model, other)[0] - sums(self.held, other)[0]).mean().clamp(min=0).detach()
        ratio, wanted = lp - self.held_sums[chosen], torch.tensor([self.shard.documents[i][2] for i in chosen]) == 1
        losses = torch.where(wanted, self.desirable_weight * (1 - torch.sigmoid(self.beta * (ratio - kl))),
                             self.undesirable_weight * (1 - torch.sigmoid(self.beta * (kl - ratio))))
        return losses, {"rewards/chosen": self.beta * ratio[wanted], "rewards/rejected": self.beta * ratio[~wanted],
                        "logps/chosen": lp[wanted], "logps/rejected": lp[~wanted], "kl": kl[None]}

    def scores(self, model, chosen):
        reward = torch.stack([model(input_ids=torch.tensor([self.shard.documents[2 * i + j][0]])).logits[0, 0]
                              for j in (0, 1) for i in chosen])
        c, r = reward.split(len(chosen))
        return -functional.logsigmoid(c - r), {"rewards/chosen": c, "rewards/rejected": r, "rewards/margins": c - r,
                                               "rewards/accuracies": (c > r).double()}

    def distilled(self, model, chosen):
        """alpha · T² · KL(teacher || student) + (1 − alpha) · cross-entropy, the mean over the targets. The teacher is what it is of
        its top_k best tokens."""
        documents, total, count = [self.shard.documents[i] for i in chosen], 0.0, 0
        temperature, alpha = self.more["distill"]["temperature"], self.more["distill"]["alpha"]
        with torch.no_grad():
            teachers = list(log_probabilities(self.held, documents, temperature))
        students = zip(log_probabilities(model, documents), log_probabilities(model, documents, temperature))
        for (teacher, targets, counts), ((table, _, _), (warm, _, _)) in zip(teachers, students):
            best = teacher.topk(self.more["top_k"]).indices
            teacher = torch.log_softmax(teacher.gather(1, best), -1)
            divergence = functional.kl_div(warm.gather(1, best), teacher, reduction="none", log_target=True).sum(-1)
            cross = functional.nll_loss(table, targets, reduction="none")
            total += (alpha * temperature ** 2 * divergence + (1 - alpha) * cross)[counts].sum()
            count += int(counts.sum())
        return (total / count)[None], {}

    def figures(self, model, chosen, group):
        """Losses and metrics, each of those that it is the mean of."""
        if self.loss == "kto":
            return self.examples(model, chosen, group)
        return {"reward": self.scores, "distill": self.distilled}.get(self.loss, self.pairs)(model, chosen)


class Watch:
    """A trainer that computes each micro-batch's figures a second time, and whose mismatched examples are those of several ranks."""
    case, group, seen = None, BATCH, None

    def _prepare_dataset(self, dataset, processing_class, args, *more):
        whole, args.per_device_train_batch_size = args.per_device_train_batch_size, self.group
        out = super()._prepare_dataset(dataset, processing_class, args, *more)
        args.per_device_train_batch_size = whole
        return out

    def chosen(self):
        args, all_of_them = self.args, len(self.train_dataset)
        size = args.per_device_train_batch_size if self.model.training else args.per_device_eval_batch_size
        first = self.calls * size
        self.calls += 1
        return [(first + i) % all_of_them for i in range(size)]

    def look(self, model):
        if self.seen is not None:
            with torch.no_grad():
                self.seen.append(self.case.figures(model, self.chosen(), self.group))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.look(model)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def get_batch_loss_metrics(self, model, batch, train_eval="train"):
        """With which CPO and ORPO evaluate, without compute_loss."""
        if train_eval == "eval":
            self.look(model)
        return super().get_batch_loss_metrics(model, batch, train_eval)


class Distillation(Watch, transformers.Trainer):
    """Has torch's figures only: the second computation is the first."""

    def __init__(self, *args, processing_class, **kwargs):
        super().__init__(*args, **kwargs, data_collator=lambda rows: {"rows": [row["i"] for row in rows]})

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self.case.distilled(model, inputs["rows"])[0].mean()


def settings(case):
    """The trainer and the settings of its own."""
    common, e = dict(beta=case.beta, max_length=LONGEST), case.label_smoothing
    paired = common | dict(remove_unused_columns=False)
    if case.loss == "reward":
        return trl.RewardTrainer, trl.RewardConfig, {}
    if case.loss == "distill":
        return Distillation, transformers.TrainingArguments, dict(remove_unused_columns=False)
    if case.loss == "kto":
        return trl.KTOTrainer, trl.KTOConfig, common | dict(desirable_weight=case.desirable_weight,
                                                            undesirable_weight=case.undesirable_weight)
    if case.loss == "simpo":
        return cpo.CPOTrainer, cpo.CPOConfig, paired | dict(loss_type="simpo", cpo_alpha=case.rpo_alpha, simpo_gamma=case.gamma,
                                                            label_smoothing=e)
    if case.loss == "orpo":
        return orpo.ORPOTrainer, orpo.ORPOConfig, paired
    losses = {case.loss: 1.0}
    if case.loss == "sigmoid" and e:  # which TRL's sigmoid leaves out
        losses = {"sigmoid": 2 * (1 - e), "robust": 2 * e - 1}
    if case.rpo_alpha:
        losses["sft"] = case.rpo_alpha
    return trl.DPOTrainer, trl.DPOConfig, common | dict(loss_type=list(losses), loss_weights=list(losses.values()), label_smoothing=e)


def trainer_of(case, micro, ranks, dtype, folder):
    kind, config, own = settings(case)
    size = micro * ranks
    args = config(output_dir=folder, use_cpu=True, bf16=dtype == torch.bfloat16, gradient_checkpointing=False, report_to="none",
                  disable_tqdm=True, logging_steps=1, max_steps=STEPS, per_device_train_batch_size=size,
                  per_device_eval_batch_size=size if case.loss == "kto" else len(LENGTHS),
                  gradient_accumulation_steps=BATCH // size, learning_rate=RATE, lr_scheduler_type="constant", adam_epsilon=EPS,
                  weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch", save_strategy="no",
                  train_sampling_strategy="sequential", seed=1234, **own)
    held = torch.float32 if dtype == torch.bfloat16 else dtype
    rows = datasets.Dataset.from_list([{"i": i} for i in range(len(case.shard.documents))] if case.loss == "distill"
                                      else case.shard.rows())
    kind = type(kind.__name__, (kind,) if issubclass(kind, Watch) else (Watch, kind), {"case": case, "group": micro, "calls": 0})
    more = {}
    if case.reference in ("model", "reference") and case.loss != "distill":
        more["ref_model"] = model_of(case.reference, held)
    if "peft" in case.more:
        more["peft_config"] = peft.LoraConfig(task_type="CAUSAL_LM", **copy.deepcopy(case.more["peft"]))
    trainer = kind(model_of(case.start, held), args=args, train_dataset=rows, eval_dataset=rows,
                   processing_class=tokenizer(), **more)
    trainer.remove_callback(transformers.PrinterCallback)
    if "peft" in case.more:
        for name, p in trainer.model.named_parameters():
            if p.requires_grad:
                p.data = torch.tensor(initial_values(case.name, file_name(name), p.numel())).reshape(p.shape).to(p.dtype)
    return trainer


def mean_by_step(values, steps):
    """Of each step the mean of what its micro-batches have."""
    each = len(values) // steps
    return [torch.cat(values[i * each:(i + 1) * each]).double().mean().item() for i in range(steps)]


def named(rows, before):
    """Of rows of a trainer's log, {metric: its values}; before: what is in front of their names."""
    others = {"accuracy": "rewards/accuracies", "margin": "rewards/margins"}
    rows = [{key.removeprefix(before): value for key, value in row.items() if key.startswith(before)} for row in rows]
    rows = [row | {others[key]: row[key] for key in others if key in row} for row in rows]
    wanted = ("loss", "grad_norm", *METRICS, "rewards/accuracies", "rewards/margins", "kl")
    return {key: [row.get(key) for row in rows] for key in wanted if any(key in row for row in rows)}


def train(case, micro, ranks, dtype):
    """The figures of a run, and its final weights."""
    exact = dtype == torch.float64
    compute_exactly(exact)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, micro, ranks, dtype, folder)
        trainer.seen = seen = [] if exact and case.loss != "distill" else None
        trainer.train()
        if case.loss != "distill":
            trainer.seen, trainer.calls = seen and [], 0
            trainer.evaluate()
    figures = named([row for row in trainer.state.log_history if "loss" in row], "")
    figures["eval"] = evaluated = named([row for row in trainer.state.log_history if "eval_loss" in row], "eval_")
    assert len(figures["loss"]) == STEPS
    if seen:
        figures |= second(case, figures, seen, STEPS)
        figures["eval"] = evaluated | second(case, evaluated, trainer.seen, 1)
    compute_exactly(False)
    return figures, {file_name(n): p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


def second(case, figures, seen, steps):
    """Compares the second computation with TRL's figures, and returns what TRL has not: means over the step's pairs where TRL
    has means over micro-batches, rewards of reward models, the pairs whose rewards are about equal."""
    assert np.allclose(mean_by_step([losses for losses, _ in seen], steps), figures["loss"], rtol=3e-7), case.name
    more, each = {}, len(seen) // steps
    for key in seen[0][1]:
        values = [metrics[key] for _, metrics in seen]
        if key in figures and None not in figures[key]:
            theirs = [np.mean([v.mean().item() for v in values[i * each:(i + 1) * each] if len(v)]) for i in range(steps)]
            assert np.allclose(theirs, figures[key], rtol=1e-6, atol=1e-8), (case.name, key, theirs, figures[key])
        more[key] = mean_by_step(values, steps)
    more = {key: [None if np.isnan(x) else x for x in values] for key, values in more.items()}
    if "rewards/margins" in seen[0][1]:
        margins = [metrics["rewards/margins"] for _, metrics in seen]
        more["close"] = mean_by_step([(values.abs() < 1e-3).double() for values in margins], steps)
        assert case.loss != "hinge" or (torch.cat(margins) - 1).abs().min() > 1e-3  # where the gradient has a step
    else:
        more["rewards/margins"] = [None if None in pair else pair[0] - pair[1]
                                   for pair in zip(more["rewards/chosen"], more["rewards/rejected"])]
    return more


def rounding(run, exact):
    """How far the figures and weights of a run stray; norms and weights relatively."""
    (figures, final), (right, ends) = run, exact

    def furthest(these, those):
        return {key: max((abs(a - b) for a, b in zip(these[key], those[key]) if None not in (a, b)), default=0.0)
                for key in these if key in those and key not in ("eval", "rewards/accuracies")}

    out, evaluated = furthest(figures, right), furthest(figures["eval"], right["eval"])
    same = ("loss", "kl") if "kl" in right else tuple(evaluated)  # TRL's means of KTO's evaluation are of micro-batches
    out = {key: max(value, evaluated[key] if key in same else 0.0) for key, value in out.items()}
    out["grad_norm"] = max(abs(a / b - 1) for a, b in zip(figures["grad_norm"], right["grad_norm"]))
    return out | {"final": make_golden.relative(final, ends)[0]}


def make(name):
    case = Case(name)
    runs = {batch: train(case, *batch, torch.float64) for batch in case.batches()}
    exact = runs[case.batches()[0]]
    if len(runs) == 1 and case.loss != "distill":  # accumulation changes nothing
        for micro in (3, 2):
            accumulated, _ = train(case, micro, 1, torch.float64)
            assert all(np.allclose(accumulated[key], exact[0][key], rtol=1e-6, atol=1e-9) for key in exact[0] if key != "eval"), name
    strays = {"fp32": rounding(train(case, *case.batches()[0], torch.float32), exact)}
    if name in ("sigmoid", "kto"):
        strays["bf16"] = rounding(train(case, *case.batches()[0], torch.bfloat16), exact)
    tensors = {f"{name}/{n}": t.float().contiguous() for n, t in exact[1].items()
               if n in KEPT or "whole" in case.more or "peft" in case.more}
    entry = {"name": name, "model": case.start, "data": case.shard.name, "preference": case.preference, "reference": case.reference}
    entry |= {key: value for key, value in case.more.items() if key != "whole"}
    entry |= short_figures(exact[0])
    entry["by_batch"] = {f"{micro}x{ranks}": short_figures(figures) for (micro, ranks), (figures, _) in list(runs.items())[1:]}
    entry["rounding"] = {kind: {key: float(f"{value:.2g}") for key, value in strayed.items()} for kind, strayed in strays.items()}
    print(f"{name:26s} loss {exact[0]['loss'][0]:.4f} -> {exact[0]['loss'][-1]:.4f}  norm {exact[0]['grad_norm'][0]:.2f}  fp32 "
          + " ".join(f"{key} {value:.0e}" for key, value in strays["fp32"].items()), flush=True)
    return {key: value for key, value in entry.items() if value not in ({}, None)}, tensors


def short_figures(figures):
    return {key: short_figures(values) if isinstance(values, dict) else [None if x is None else short(x) for x in values]
            for key, values in figures.items()}


def references():
    """{shard: {model: {"0": of the documents, "6": of those with another's answer in groups of six}}}"""
    compute_exactly(True)
    out = {}
    for shard, groups in ((Shard("pairs"), []), (Shard("examples"), [6, 3, 2])):
        out[shard.name] = {}
        for name in ("model", "reference"):
            model = model_of(name, torch.float64)
            of_each = {0: shard.documents} | {group: shard.mismatched(group) for group in groups}
            out[shard.name][name] = {str(group): short(sums(model, documents)[0].tolist()) for group, documents in of_each.items()}
    compute_exactly(False)
    return out


def write_inputs():
    PLACE.mkdir(exist_ok=True)
    for name in ("model", "reference", "reward"):
        write_model(name)
    for name in ("pairs", "examples"):
        Shard(name).write()
    licence = pathlib.Path(__file__).read_text(encoding="utf-8").splitlines()[1]
    (PLACE / "run.yaml").write_text(f"""\
{licence}
run: {{name: preferences, dir: runs, seed: 1234}}
model: {{pretrained: tests/golden/preferences/model}}
data: {{train: tests/golden/preferences/pairs, seq_length: {LONGEST}, shuffle: false}}
train: {{max_steps: {STEPS}, device: cpu}}
checkpoint: {{interval_steps: {STEPS}}}
train_batch_size: {BATCH}
gradient_clipping: 1.0
optimizer:
  type: AdamW
  params: {{lr: {RATE}, betas: [0.9, 0.999], eps: {EPS:.6f}, weight_decay: 0}}
scheduler: {{type: Constant}}
zero_optimization: {{stage: 0}}
steps_per_print: 1
""")


def main(wanted):
    path, weights = PLACE / "figures.json", PLACE / "final.safetensors"
    old, tensors = {}, {}
    if wanted and path.exists():
        old = {case["name"]: case for case in json.loads(path.read_text())["cases"]}
        tensors = load_file(weights)
    write_inputs()
    cases = []
    for name in CASES:
        if wanted and name not in wanted:
            cases += [old[name]] if name in old else []
            continue
        entry, made = make(name)
        cases.append(entry)
        tensors = {n: t for n, t in tensors.items() if not n.startswith(f"{name}/")} | made
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__, "peft": peft.__version__}
    path.write_text(json.dumps(versions | {"logps": references()})[:-1] + ", \"cases\": [\n" + ",\n".join(map(json.dumps, cases)) + "\n]}\n")
    save_file({n: tensors[n] for n in sorted(tensors)}, weights)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
