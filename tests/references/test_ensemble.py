"""Ensembles: weights and temperatures against a plain loop, and calibration."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from flipguard.errors import InputError
from flipguard.references import Ensemble, OldModel, Reference, StoredLogits
from flipguard.references.ensemble import fitted_temperature
from tests.references.models import CLASSES, images, mlp, timm_model, torchvision_model

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -7.0]])


def times(factor: float) -> Any:
    return lambda x: factor * x


def plain(logits: list[Tensor], weights: list[float], temperatures: list[float]) -> list[Any]:
    """The definition: sum of w_i * z_i / T_i over the sum of w_i, number by number."""
    rows, columns = logits[0].shape
    return [
        [
            sum(
                w * float(z[i, j]) / t
                for w, z, t in zip(weights, logits, temperatures, strict=True)
            )
            / sum(weights)
            for j in range(columns)
        ]
        for i in range(rows)
    ]


# -- the mean ------------------------------------------------------------------------------------


@functools.cache
def architectures() -> list[nn.Module]:
    return [mlp(1), timm_model(2), torchvision_model(3)]


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 1.0], [0.2, 3.0, 0.5], [0.0, 0.0, 2.0]])
@pytest.mark.parametrize("temperatures", [None, [1.0, 2.0, 0.25]])
def test_mixed_architectures_are_averaged_as_a_plain_loop_says(
    weights: list[float] | None, temperatures: list[float] | None
) -> None:
    models = architectures()
    logits = [OldModel(model)(images()) for model in models]
    mean = Ensemble(models, weights=weights, temperatures=temperatures)(images())
    expected = plain(logits, weights or [1.0] * 3, temperatures or [1.0] * 3)
    np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert mean.shape == (4, CLASSES)
    assert mean.dtype == torch.float32


@pytest.mark.parametrize("changed", range(4))
def test_every_weight_and_temperature_counts(changed: int) -> None:
    factors = [1.0, 10.0, 100.0, 1000.0]
    weights = [1.0, 2.0, 3.0, 4.0]
    temperatures = [1.0, 1.0, 1.0, 1.0]
    models = [times(factor) for factor in factors]
    before = Ensemble(models, weights=weights)(X)
    weights[changed] += 1.0
    after = Ensemble(models, weights=weights)(X)
    assert not torch.allclose(before, after)
    np.testing.assert_allclose(
        after.numpy(), plain([f * X for f in factors], weights, temperatures), rtol=1e-5
    )
    temperatures[changed] = 2.0
    cooled = Ensemble(models, weights=weights, temperatures=temperatures)(X)
    assert not torch.allclose(cooled, after)
    np.testing.assert_allclose(
        cooled.numpy(), plain([f * X for f in factors], weights, temperatures), rtol=1e-5
    )


def test_only_the_ratio_of_weights_counts() -> None:
    models = [times(1.0), times(5.0)]
    ensemble = Ensemble(models, weights=[2, 6])
    assert ensemble.weights == (0.25, 0.75)
    assert torch.equal(ensemble(X), Ensemble(models, weights=torch.tensor([1.0, 3.0]))(X))
    assert Ensemble(models).weights == (0.5, 0.5)
    assert Ensemble(models).temperatures == (1.0, 1.0)


def test_raw_logits_are_averaged_not_probabilities() -> None:
    far = torch.tensor([[10.0, 0.0], [0.0, 1.0]])
    mean = Ensemble([lambda: far, lambda: -far + 1.0])()
    assert torch.equal(mean, torch.full((2, 2), 0.5))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([torch.float16, torch.float16], torch.float32),
        ([torch.bfloat16, torch.float32], torch.float32),
        ([torch.float32, torch.float64], torch.float64),
        ([torch.float64, torch.float16], torch.float64),
    ],
)
def test_the_mean_is_summed_in_wide_floats(
    members: list[torch.dtype], expected: torch.dtype
) -> None:
    mean = Ensemble([lambda dtype=dtype: X.to(dtype) for dtype in members])()
    assert mean.dtype == expected
    torch.testing.assert_close(mean, X.to(expected))
    # A thousand and one halves: in float16 the sum would have stopped at the second digit.
    many = Ensemble([lambda: torch.full((1, 1), 2049.0, dtype=torch.float32)] * 1001)()
    assert float(many) == pytest.approx(2049.0, rel=1e-5)


def test_members_may_be_references_and_ensembles() -> None:
    stored = StoredLogits(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    inner = Ensemble([stored, stored], temperatures=[1.0, 2.0])
    outer = Ensemble([inner, stored, OldModel(lambda ids: torch.zeros(len(ids), 2))])
    assert torch.allclose(outer([1]), torch.tensor([[3.0, 5.0]]) * (0.75 + 1.0) / 3)
    assert isinstance(outer, Reference)
    assert (len(outer), len(inner)) == (3, 2)


def test_members_may_come_as_a_module_list() -> None:
    models = nn.ModuleList([mlp(1), mlp(2)])
    assert torch.equal(Ensemble(models)(images()), Ensemble(list(models))(images()))


def test_output_picks_the_logits_of_every_member() -> None:
    ensemble = Ensemble(
        [lambda x: (x, 0), lambda x: (3 * x, 1), OldModel(times(5.0))], output=lambda pair: pair[0]
    )
    torch.testing.assert_close(ensemble(X), 3.0 * X)


def test_a_members_memory_is_not_summed_into() -> None:
    kept = X.clone()
    ensemble = Ensemble([lambda x: x, lambda x: x])
    ensemble(X)
    assert torch.equal(X, kept)


# -- what is refused -----------------------------------------------------------------------------


def test_a_member_of_another_shape_is_refused_by_its_index() -> None:
    text = (
        "Expected `models[2]` to give logits of shape (2, 3) as `models[0]` does, but got (2, 2). "
        "Average models of the same classes only."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        Ensemble([times(1.0), times(2.0), lambda x: x[:, :2]])(X)
    # What could be broadcast is refused as well.
    with pytest.raises(InputError, match=r"`models\[1\]` to give .* but got \(1, 3\)"):
        Ensemble([times(1.0), lambda x: x[:1]])(X)


WEIGHTS = "Leave `weights` out to weigh all models alike."
WARMTH = "Temperatures divide the logits; 1 leaves them as they are."
ONE_EACH = "Give one number for each model."


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"weights": [3.0, -1.0]},
            "Expected `weights` to be numbers from 0 on, one of them above 0, but got [3.0, -1.0]. "
            + WEIGHTS,
        ),
        (
            {"weights": [0, 0]},
            "Expected `weights` to be numbers from 0 on, one of them above 0, but got [0.0, 0.0]. "
            + WEIGHTS,
        ),
        (
            {"weights": [1.0, math.nan]},
            "Expected `weights` to be finite, but got [1.0, nan]. " + ONE_EACH,
        ),
        (
            {"weights": [1.0]},
            "Expected `weights` to hold 2 numbers, one for each model, but got 1. " + ONE_EACH,
        ),
        (
            {"weights": 1.0},
            "Expected `weights` to be a list of numbers, but got 1.0. " + ONE_EACH,
        ),
        (
            {"temperatures": [1.0, 0.0]},
            "Expected `temperatures` to be above 0, but got [1.0, 0.0]. " + WARMTH,
        ),
        (
            {"temperatures": [-1.0, 1.0]},
            "Expected `temperatures` to be above 0, but got [-1.0, 1.0]. " + WARMTH,
        ),
        (
            {"temperatures": [1.0, math.inf]},
            "Expected `temperatures` to be finite, but got [1.0, inf]. " + ONE_EACH,
        ),
        (
            {"temperatures": [1.0, 2.0, 3.0]},
            "Expected `temperatures` to hold 2 numbers, one for each model, but got 3. " + ONE_EACH,
        ),
        (
            {"temperatures": ["warm", "cold"]},
            "Expected `temperatures` to be a list of numbers, but got ['warm', 'cold']. "
            + ONE_EACH,
        ),
    ],
)
def test_bad_weights_and_temperatures_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        Ensemble([times(1.0), times(2.0)], **options)


@pytest.mark.parametrize(
    ("models", "kind"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "Sequential"),
        (OldModel(nn.Linear(2, 2)), "OldModel"),
        (None, "NoneType"),
    ],
)
def test_one_model_alone_is_refused(models: Any, kind: str) -> None:
    text = (
        f"Expected `models` to be a list of models, but got {kind}. Give [model, …]; one model "
        "alone is an OldModel."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        Ensemble(models)


def test_no_model_at_all_is_refused() -> None:
    text = (
        "Expected `models` to hold at least one model, but got none. Give the models whose logits "
        "are averaged."
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        Ensemble([])
    with pytest.raises(InputError, match="but got str"):
        Ensemble(["old.pt"])  # type: ignore[list-item]


# -- calibration ---------------------------------------------------------------------------------


def samples(sharpness: float, n: int = 4000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits that are `sharpness` times too large, and targets drawn without that factor."""
    generator = torch.Generator().manual_seed(seed)
    true = 2.0 * torch.randn(n, 4, generator=generator)
    target = torch.multinomial(true.softmax(dim=1), 1, generator=generator)[:, 0]
    return sharpness * true, target


def nll(logits: Tensor, target: Tensor) -> float:
    return float(functional.cross_entropy(logits.double(), target))


def calibration_error(logits: Tensor, target: Tensor, bins: int = 10) -> float:
    """The expected calibration error, by definition."""
    sure, label = logits.softmax(dim=1).max(dim=1)
    right = (label == target).double()
    place = (sure * bins).long().clamp(max=bins - 1)
    return sum(
        abs(float((right[place == b] - sure[place == b]).mean())) * float((place == b).sum())
        for b in range(bins)
        if bool((place == b).any())
    ) / len(target)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_calibration_finds_the_temperature_that_a_grid_finds(sharpness: float) -> None:
    logits, target = samples(sharpness, n=1000)
    found = fitted_temperature(logits, target)
    step = math.log(400.0) / 1000
    grid = [0.05 * math.exp(i * step) for i in range(1001)]
    best = min(grid, key=lambda t: nll(logits / t, target))
    assert found == pytest.approx(best, rel=step)
    assert found == pytest.approx(sharpness, rel=0.15)
    assert nll(logits / found, target) <= nll(logits / best, target)


def test_calibration_improves_likelihood_and_calibration_of_held_out_samples() -> None:
    (fit, fit_target), (held_out, target) = samples(4.0), samples(4.0, seed=1)
    sure = Ensemble([times(1.0), times(0.05)])
    calm = sure.calibrate([(fit[:1500], fit_target[:1500]), (fit[1500:], fit_target[1500:])])
    assert isinstance(calm, Ensemble)
    assert sure.temperatures == (1.0, 1.0)
    assert calm.temperatures[0] == pytest.approx(4.0, rel=0.1)
    assert calm.temperatures[1] == pytest.approx(0.2, rel=0.1)
    assert calm.temperatures[1] == pytest.approx(0.05 * calm.temperatures[0], rel=1e-6)
    for i in range(2):
        before = held_out * (1.0, 0.05)[i]
        after = before / calm.temperatures[i]
        assert nll(after, target) < nll(before, target) - 0.05
        assert calibration_error(after, target) < 0.5 * calibration_error(before, target)
    assert nll(calm(held_out), target) < nll(sure(held_out), target)
    # Temperatures are of the raw logits: calibrating again gives the same.
    assert calm.calibrate([(fit, fit_target)]).temperatures == pytest.approx(calm.temperatures)


def test_calibration_keeps_weights_members_and_models() -> None:
    model = mlp(1)
    ensemble = Ensemble([model, mlp(2)], weights=[1.0, 3.0])
    loader = DataLoader(TensorDataset(images(8), torch.arange(8) % CLASSES), batch_size=3)
    calm = ensemble.calibrate(loader)
    assert calm.weights == ensemble.weights == (0.25, 0.75)
    assert model.training
    expected = plain(
        [OldModel(model)(images()), OldModel(mlp(2))(images())],
        [1.0, 3.0],
        list(calm.temperatures),
    )
    np.testing.assert_allclose(calm(images()).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_inputs_may_be_a_tensor_arguments_or_keyword_arguments() -> None:
    logits, target = samples(2.0, n=200)
    ensemble = Ensemble([lambda x, scale=1.0: x * scale])
    found = {
        ensemble.calibrate(iter([batch])).temperatures
        for batch in (
            (logits, target),
            ((logits, 1.0), target),
            [[logits], target],
            ({"x": logits, "scale": 1.0}, target),
        )
    }
    assert len(found) == 1


def test_ignored_samples_do_not_count() -> None:
    logits, target = samples(2.0, n=200)
    target[100:] = -100
    (expected,) = Ensemble([times(1.0)]).calibrate([(logits[:100], target[:100])]).temperatures
    (found,) = Ensemble([times(1.0)]).calibrate([(logits, target)]).temperatures
    assert found == pytest.approx(expected, rel=1e-9)


def test_temperatures_stay_within_their_bounds() -> None:
    right = 0.001 * torch.eye(3)
    assert fitted_temperature(right, torch.arange(3)) == 0.05
    assert fitted_temperature(1000.0 * right, (torch.arange(3) + 1) % 3) == 20.0


def test_many_rows_are_worked_on_in_parts() -> None:
    logits, target = samples(2.0, n=10_000)
    found = fitted_temperature(logits, target)
    b, z = 1.0 / found, logits.double()
    slope = ((b * z).softmax(dim=1) * z).sum(dim=1) - z.gather(1, target[:, None])[:, 0]
    assert float(slope.mean()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        (
            [],
            "Expected `batches` to hold samples with a target, but got none. Give held-out data "
            "with its targets.",
        ),
        (
            [(X, torch.tensor([-100, -100]))],
            "Expected `batches` to hold samples with a target, but got none. Give held-out data "
            "with its targets.",
        ),
        (
            [X],
            "Expected `batches` to give pairs (inputs, target tensor), but got a Tensor. Give "
            "inputs as a tensor, a tuple of arguments or a mapping of keyword arguments.",
        ),
        (
            [(X, X, X)],
            "Expected `batches` to give pairs (inputs, target tensor), but got a tuple of 3. Give "
            "inputs as a tensor, a tuple of arguments or a mapping of keyword arguments.",
        ),
        (
            [(X, X.softmax(dim=1))],
            "Expected `target` to be class indices, but got torch.float32. Calibrate with hard "
            "targets.",
        ),
        (
            [(X, torch.tensor([0]))],
            "Expected `target` to be of shape (2,), one class per row of the output of "
            "`models[0]`, but got (1,). Give one class index per sample.",
        ),
        (
            [(X, torch.tensor([3, -1]))],
            "Expected `target` to be from 0 to 2, but got -1, 3. Give indices of the models' "
            "classes, and -100 for samples to leave out.",
        ),
        (
            [(X / 0.0, torch.tensor([0, 1]))],
            "Expected `models[0]` to give finite logits, but got nan or infinity. Calibrate a "
            "model that scores every class.",
        ),
    ],
)
def test_batches_that_cannot_be_calibrated_with_are_refused(batches: list[Any], text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        Ensemble([times(1.0), times(2.0)]).calibrate(batches)
