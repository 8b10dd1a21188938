#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the golden cases of classifiers with Hugging Face transformers and scikit-learn.

    python3 make_classifiers.py [CASE ...]      (packages: torch, transformers, safetensors, numpy, scikit-learn)

A case has the files of make_golden.py's (without the gradients), and train.labels and validation.labels (and .types, if
the documents are pairs); expected.json has accuracy and F1 of each evaluation as well. Labels follow from the documents'
tokens, so that there is something to learn, and its logits, which tell what may be predicted otherwise where a program rounds otherwise. Some documents end with the token that pads, because transformers looks for
the last token that is not padding. It stands nowhere else: torch does not train the row of an embedding that pads, ztrain
does. BERT, which takes the first token and sees all others, has none.
"""
import json
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import make_golden as golden

PAD, EVAL_SAMPLES = 0, 23


def bert(**changes):
    return dict(vocab_size=103, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
                max_position_embeddings=20, type_vocab_size=2, hidden_act="gelu", hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0) | changes


CASES = {
    "classify-gpt2": dict(family="gpt2", classes=2, config=golden.gpt2(), T=16, micro=2, eps=1e-6),
    "classify-llama": dict(family="llama", classes=3, config=golden.llama(), T=14, micro=3, clip=0.5),
    "classify-bert": dict(family="bert", classes=2, config=bert(), T=16, micro=2, lr=1.5e-3, eps=1e-6, pairs=True,
                          ends_padded=False),
}


class Classifier(golden.Case):
    def __init__(self, name):
        self.name = name
        self.seed = 500 + 10 * list(CASES).index(name)
        for key, value in (golden.DEFAULTS | dict(padded=True, pairs=False, ends_padded=True) | CASES[name]).items():
            setattr(self, key, value)
        names = [f"class {i}" for i in range(self.classes)]
        self.config = self.config | dict(pad_token_id=PAD, id2label=dict(enumerate(names)),
                                         label2id={n: i for i, n in enumerate(names)})
        self.train, self.validation = self.documents()

    def documents(self):
        """Documents of 1 to T tokens: (tokens, tokens of the first text, label)."""
        rng = np.random.default_rng(self.seed)

        def document():
            length = int(rng.integers(2 if self.pairs else 1, self.T + 1))
            label = int(rng.integers(self.classes))
            tokens = [int(rng.integers(1, 12)) * self.classes + label for _ in range(length)]
            tokens = [t if rng.random() < 0.6 else int(rng.integers(1, self.config["vocab_size"])) for t in tokens]
            if self.ends_padded and length > 1 and rng.random() < 0.2:
                tokens[-1] = PAD
            return tokens, int(rng.integers(1, length)) if self.pairs else length, label

        return [document() for _ in range(golden.STEPS * golden.BATCH)], [document() for _ in range(EVAL_SAMPLES)]

    def samples(self, documents, first, count):
        """Tokens (-1: beyond the document) and types (count, T, 2), and labels (count)."""
        x = torch.full((count, self.T, 2), -1)
        x[:, :, 1] = 0
        for row, (tokens, first_text, _) in enumerate(documents[first:first + count]):
            x[row, :len(tokens), 0] = torch.tensor(tokens)
            x[row, first_text:len(tokens), 1] = 1
        return x, torch.tensor([label for _, _, label in documents[first:first + count]])

    def auto_class(self):
        return transformers.AutoModelForSequenceClassification


evaluated = []  # the logits of each evaluation of the run, in order


def loss_sum(model, x, y, views=None):
    assert not views  # documents in one sample
    ids, types = x[:, :, 0], x[:, :, 1]
    given = dict(token_type_ids=types) if model.config.model_type == "bert" else dict(use_cache=False)
    logits = model(input_ids=ids.clamp(min=PAD), attention_mask=(ids >= 0).long(), **given).logits
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    if not torch.is_grad_enabled():
        evaluated.append(logits.double())
    return torch.nn.functional.cross_entropy(logits, y, reduction="sum")


def write_labels(prefix, case, documents):
    np.array([label for _, _, label in documents], "<i4").tofile(f"{prefix}.labels")
    if case.pairs:
        types = [int(i >= first) for tokens, first, _ in documents for i in range(len(tokens))]
        np.array(types, "u1").tofile(f"{prefix}.types")


def scores(case):
    """Accuracy, F1 and logits of the evaluations."""
    import sklearn.metrics
    labels = [label for _, _, label in case.validation]
    average = "binary" if case.classes == 2 else "macro"
    return {kind: {golden.EVAL_EVERY * (i + 1): score(logits) for i, logits in enumerate(evaluated)}
            for kind, score in (("accuracy", lambda x: float(sklearn.metrics.accuracy_score(labels, x.argmax(-1)))),
                                ("f1", lambda x: float(sklearn.metrics.f1_score(labels, x.argmax(-1), average=average))),
                                ("logits", lambda x: x))}


def rounding(run, exact):
    """With `gap`: how far the distance of two logits of a sample strays."""
    strayed = torch.stack([run["logits"][step] - exact["logits"][step] for step in exact["logits"]])
    return golden.rounding(run, exact) | dict(gap=(strayed.amax(-1) - strayed.amin(-1)).max().item())


def make(name):
    case, folder = Classifier(name), golden.HERE / name
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    model = case.model()
    golden.write_config(case, model, folder)
    golden.write_model(case, model, folder)
    for part in ("train", "validation"):
        documents = getattr(case, part)
        golden.write_tokens(folder / part, [tokens for tokens, _, _ in documents])
        write_labels(folder / part, case, documents)
    golden.write_spec(case, folder)
    spec = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(spec.replace("\ndata:", "\n  task: sequence_classification\ndata:"))
    runs = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        evaluated.clear()
        runs[dtype] = golden.train(case, dtype) | scores(case)
    exact, single, half = runs.values()
    expected = {
        "case": name, "torch": torch.__version__, "transformers": transformers.__version__,
        "loss": exact["loss"], "grad_norm": exact["norm"], "lr": exact["rate"], "eval_loss": exact["eval"],
        "accuracy": exact["accuracy"], "f1": exact["f1"], "eval_samples": EVAL_SAMPLES,
        "eval_labels": " ".join(str(label) for _, _, label in case.validation),
        "eval_logits": {step: [" ".join(f"{x:.7f}" for x in row) for row in rows] for step, rows in exact["logits"].items()},
        "rounding": {"fp32": rounding(single, exact), "bf16": rounding(half, exact)},
        "grad_norms_1": {n: g.norm().item() for n, g in exact["grads"].items()},
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    tensors = {n: t.float().contiguous() for n, t in exact["final"].items()}
    save_file(tensors, folder / "final.safetensors", metadata={"format": "pt"})
    print(f"{name:15s} loss {exact['loss'][0]:.4f} -> {exact['loss'][-1]:.4f}  accuracy {exact['accuracy']}  "
          f"f1 {exact['f1']}  bf16 accuracy {half['accuracy']}", flush=True)


if __name__ == "__main__":
    golden.loss_sum, golden.EVAL_SAMPLES = loss_sum, EVAL_SAMPLES
    torch.set_num_threads(1)
    for wanted in sys.argv[1:] or CASES:
        make(wanted)
