"""Pictures: valid files of the expected size, whatever the models are called."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from flipguard import InputError, MissingExtraError
from flipguard.matrices import Matrix
from flipguard.plots import (
    DOTS_PER_INCH,
    LARGEST_SQUARE,
    MOST_MODELS,
    MOST_NUMBERED,
    STYLE,
    plot_matrix,
)


def made(k: int, *, names: list[str] | None = None, targets: bool = True) -> Matrix:
    rng = np.random.default_rng(k)
    error = np.sort(rng.random(k) / 2)
    nothing, square = np.full(k, np.nan), np.full((k, k), np.nan)
    return Matrix(
        names=tuple(names or [f"model{i}" for i in range(k)]),
        n=10_000,
        error_rate=error if targets else nothing,
        negative_flip_rate=rng.random((k, k)) / 4 if targets else square,
        churn=rng.random((k, k)),
        accuracy_gain=error[:, None] - error[None, :] if targets else square,
    )


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def svg_texts(path: Path) -> list[str]:
    # Letters are drawn as shapes; their text stands beside them as a comment.
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.parse(path, parser).getroot()
    return [(e.text or "").strip() for e in root.iter() if e.tag is ElementTree.Comment]


@pytest.mark.parametrize("k", [2, 3, 13, 20])
def test_a_png_of_the_expected_size(tmp_path: Path, k: int) -> None:
    plot_matrix(made(k), tmp_path / "matrix.png")
    width, height = png_size(tmp_path / "matrix.png")
    side = max(3.2, k * np.clip(7.0 / k, 0.48, 1.15))
    assert 2 * side < width / DOTS_PER_INCH < 2 * side + 5
    assert side < height / DOTS_PER_INCH < side + 3
    assert os.listdir(tmp_path) == ["matrix.png"]


def test_svg_and_pdf(tmp_path: Path) -> None:
    plot_matrix(made(3), tmp_path / "matrix.svg")
    assert ElementTree.parse(tmp_path / "matrix.svg").getroot().tag.endswith("svg")
    plot_matrix(made(3), tmp_path / "matrix.PDF")
    assert (tmp_path / "matrix.PDF").read_bytes().startswith(b"%PDF-")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_matrix_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        plot_matrix(made(4), tmp_path / f"{name}{suffix}")
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert first == second


def test_models_go_from_worst_to_best(tmp_path: Path) -> None:
    plot_matrix(made(4), tmp_path / "matrix.svg")
    texts = svg_texts(tmp_path / "matrix.svg")
    names = [text for text in texts if text.startswith("model") and "%" not in text]
    assert names == ["model3", "model2", "model1", "model0"] * 2
    assert "Accuracy gain (%)" in texts
    assert "Negative flip rate (%)" in texts


def test_every_number_is_there(tmp_path: Path) -> None:
    matrix = made(3)
    plot_matrix(matrix, tmp_path / "matrix.svg")
    texts = svg_texts(tmp_path / "matrix.svg")
    for i in range(3):
        for j in range(3):
            if i != j:
                gain = f"{100 * matrix.accuracy_gain[i, j]:+.1f}".replace("-", "−")
                assert gain in texts
                assert f"{100 * matrix.negative_flip_rate[i, j]:.1f}" in texts


def test_many_models_are_told_by_colour_alone(tmp_path: Path) -> None:
    matrix = made(MOST_NUMBERED + 1)
    plot_matrix(matrix, tmp_path / "matrix.svg")
    texts = svg_texts(tmp_path / "matrix.svg")
    names = [text for text in texts if text.startswith("model")]
    assert len(names) == 3 * (MOST_NUMBERED + 1)  # two x axes, one y axis
    assert f"{100 * matrix.negative_flip_rate[0, 1]:.1f}" not in texts


def test_a_picture_of_many_models_grows_no_further(tmp_path: Path) -> None:
    plot_matrix(made(60), tmp_path / "matrix.png")
    width, height = png_size(tmp_path / "matrix.png")
    assert width / DOTS_PER_INCH < 2 * LARGEST_SQUARE + 5
    assert height / DOTS_PER_INCH < LARGEST_SQUARE + 3


def test_without_targets_churn_is_drawn(tmp_path: Path) -> None:
    plot_matrix(made(3, targets=False), tmp_path / "matrix.svg")
    texts = svg_texts(tmp_path / "matrix.svg")
    assert "Churn (%)" in texts
    assert "Accuracy gain (%)" not in texts


def test_hostile_names(tmp_path: Path) -> None:
    names = ["$x^2$", "a\nb", "日本語", "runs/" + "deep/" * 40 + "model.parquet", "<b>&amp;", ""]
    plot_matrix(made(6, names=names), tmp_path / "matrix.png")
    plot_matrix(made(6, names=names), tmp_path / "matrix.svg")
    width, _ = png_size(tmp_path / "matrix.png")
    assert width / DOTS_PER_INCH < 2 * 7 + 6
    assert "$x^2$" in svg_texts(tmp_path / "matrix.svg")


def test_long_names_that_differ_in_the_middle_stay_apart(tmp_path: Path) -> None:
    names = [f"{'a' * 30}{i}{'b' * 30}" for i in range(3)]
    plot_matrix(made(3, names=names), tmp_path / "matrix.svg")
    assert set(names) <= set(svg_texts(tmp_path / "matrix.svg"))


def test_models_that_are_all_the_same(tmp_path: Path) -> None:
    zero = np.zeros((2, 2))
    same = Matrix(
        names=("a", "b"),
        n=1,
        error_rate=np.zeros(2),
        negative_flip_rate=zero,
        churn=zero,
        accuracy_gain=zero,
    )
    plot_matrix(same, tmp_path / "matrix.png")
    assert png_size(tmp_path / "matrix.png")[0] > 500


def test_global_state_stays_as_it_was(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = [mpl.rcParams[key] for key in STYLE]
    plot_matrix(made(2), tmp_path / "matrix.png")
    assert [mpl.rcParams[key] for key in STYLE] == before


def test_plots_are_loaded_when_they_are_drawn() -> None:
    program = "import sys, flipguard.plots; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"


# -- refusals ----------------------------------------------------------------------------------


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"matrix\.jpg does not end in the suffix of a picture"):
        plot_matrix(made(2), tmp_path / "matrix.jpg")


def test_more_models_than_can_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected at most 200 models in one picture, but got 201"):
        plot_matrix(made(MOST_MODELS + 1), tmp_path / "matrix.png")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere is no folder; create it first"):
        plot_matrix(made(2), tmp_path / "nowhere" / "matrix.png")


def test_matplotlib_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[report\]'"):
        plot_matrix(made(2), tmp_path / "matrix.png")


def test_a_failure_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "matrix.png").write_bytes(b"as it was")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        plot_matrix(made(2), tmp_path / "matrix.png")
    assert (tmp_path / "matrix.png").read_bytes() == b"as it was"
    assert os.listdir(tmp_path) == ["matrix.png"]
