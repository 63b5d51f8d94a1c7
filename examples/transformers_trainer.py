"""A Transformers `Trainer`, and a subclass of it that is distilled from the old model.

The new model is the old one trained again, on a third more data. Trained as usual it fails on
samples that the old one gets right. Trained with focal distillation of its probabilities (Yan et
al., "Positive-Congruent Training", 2021; FD-KL) it is about as accurate, and breaks about a third
fewer.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor

import flipguard
from flipguard.losses import FocalDistillation
from flipguard.references import OldModel

CLASSES, WORDS, LENGTH = 6, 30, 12


def generate(samples: int, seed: int) -> list[dict[str, Tensor]]:
    """Texts of random words; each class prefers some, but all classes use all."""
    fixed = torch.Generator().manual_seed(seed)
    preference = (0.7 * torch.randn(CLASSES, WORDS, generator=fixed)).softmax(-1)
    labels = torch.randint(CLASSES, (samples,))
    words = torch.multinomial(preference[labels], LENGTH, replacement=True)
    return [{"input_ids": text, "labels": y} for text, y in zip(words, labels, strict=True)]


class CongruentTrainer(transformers.Trainer):
    """The ordinary trainer with two lines added."""

    def __init__(self, *arguments: Any, old_model: torch.nn.Module, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.old, self.pull = OldModel(old_model), FocalDistillation(distance="kl")  # added

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **options: Any
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        new, target = outputs.logits, inputs["labels"]
        loss = loss + 0.2 * self.pull(new=new, old=self.old(**inputs), target=target)  # added
        return (loss, outputs) if return_outputs else loss


def network() -> transformers.BertForSequenceClassification:
    """A very small BERT with random weights."""
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            num_labels=CLASSES,
            initializer_range=0.1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def train(trainer: transformers.Trainer) -> None:
    """Trains without a word."""
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


def main(seed: int = 0) -> None:
    """Trains old, control and treated, and measures what each update breaks."""
    torch.manual_seed(seed)
    samples, test_samples = generate(8_000, seed), generate(6_000, seed)

    options = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved, but the folder would be made
        num_train_epochs=3,
        per_device_train_batch_size=50,
        learning_rate=5e-3,
        seed=seed,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    old_model, control, treated = network(), network(), network()
    train(transformers.Trainer(old_model, options, train_dataset=samples[:6_000]))
    train(transformers.Trainer(control, options, train_dataset=samples))
    train(CongruentTrainer(treated, options, train_dataset=samples, old_model=old_model))

    @torch.no_grad()
    def predict(model: torch.nn.Module) -> flipguard.Predictions:
        words = torch.stack([sample["input_ids"] for sample in test_samples])
        targets = torch.stack([sample["labels"] for sample in test_samples])
        logits = model.eval()(words).logits
        return flipguard.Predictions.from_arrays(logits=logits.numpy(), targets=targets.numpy())

    old, untreated, new = predict(old_model), predict(control), predict(treated)
    print("          error of old  error of new  negative flip rate (95 % interval)")
    for name, predictions in (("control", untreated), ("treated", new)):
        result = flipguard.compare(old=old, new=predictions)
        errors = f"{result['error_rate_old'].value:>12.2%}{result['error_rate_new'].value:>14.2%}"
        flips = result["negative_flip_rate"]
        print(f"{name:<10}{errors}{flips.value:>20.2%} ({flips.low:.2%} to {flips.high:.2%})")
    ratio = flipguard.compare(old=old, new=new, control=untreated)["negative_flip_ratio"]
    print(f"treated over control: {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")


if __name__ == "__main__":
    main()
