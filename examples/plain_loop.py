"""An ordinary PyTorch loop, and the same loop with focal distillation: two lines more.

The new model is wider than the old one and learns from half as much data again. Trained as usual
it is the more accurate one, and yet fails on samples that the old one gets right. Trained with
focal distillation (Yan et al., "Positive-Congruent Training", 2021; FD-LM) it breaks half as many,
for about half a point of accuracy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flipguard
from flipguard.losses import FocalDistillation
from flipguard.references import OldModel

CLASSES, FEATURES = 10, 16


def generate(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Each class is three clouds that overlap with others, so that no model is always right."""
    centres = torch.randn(CLASSES, 3, FEATURES, generator=torch.Generator().manual_seed(seed))
    target = torch.randint(CLASSES, (samples,))
    inputs = centres[target, torch.randint(3, (samples,))] + 1.1 * torch.randn(samples, FEATURES)
    return inputs, target


def multilayer_perceptron(width: int) -> nn.Module:
    """A classifier with one hidden layer."""
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


def batches(samples: Tensor, targets: Tensor, epochs: int = 20) -> list[tuple[Tensor, Tensor]]:
    """The samples in a new order for every epoch."""
    order = torch.cat([torch.randperm(len(samples)) for _ in range(epochs)]).split(100)
    return [(samples[places], targets[places]) for places in order]


def train(model: nn.Module, samples: Tensor, targets: Tensor) -> nn.Module:
    """An ordinary loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for inputs, target in batches(samples, targets):
        logits = model(inputs)
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def train_congruently(
    model: nn.Module, samples: Tensor, targets: Tensor, old_model: nn.Module
) -> nn.Module:
    """The same loop with two lines added; a larger weight than 0.2 favours the old over the new."""
    old, pull = OldModel(old_model), FocalDistillation()  # added
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for inputs, target in batches(samples, targets):
        logits = model(inputs)
        loss = F.cross_entropy(logits, target)
        loss = loss + 0.2 * pull(new=logits, old=old(inputs), target=target)  # added
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main(seed: int = 0) -> None:
    """Trains old, control and treated, and measures what each update breaks."""
    torch.manual_seed(seed)
    samples, targets = generate(3_000, seed)
    test_samples, test_targets = generate(10_000, seed)

    old_model = train(multilayer_perceptron(128), samples[:2_000], targets[:2_000])
    control = train(multilayer_perceptron(256), samples, targets)
    treated = train_congruently(multilayer_perceptron(256), samples, targets, old_model)

    def predict(model: nn.Module) -> flipguard.Predictions:
        with torch.no_grad():
            logits = model(test_samples).numpy()
        return flipguard.Predictions.from_arrays(logits=logits, targets=test_targets.numpy())

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
