"""The examples run as they are, and show what they claim."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flipguard import compare, read_predictions

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = ["lightning_module", "plain_loop", "timm_model", "transformers_trainer"]
OTHERS = ["adopt_a_model", "members", "road_signs"]  # which write files

# Runs a script as `python script.py` would, and tells of every file that Python opens for writing
# and every folder that it makes.
WATCHED = """
import os, runpy, sys

written = []
inside = os.path.realpath(os.getcwd()) + os.sep
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def watch(event, arguments):
    if event == "open":
        path, _, flags = arguments
        if not (isinstance(path, (str, bytes)) and flags & WRITING):
            return
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.truncate"):
        path = arguments[1] if event == "os.rename" else arguments[0]
    else:
        return
    path = os.path.realpath(os.fsdecode(path))
    if not path.startswith(inside) and not path.startswith(("/dev/", "/proc/")):
        written.append(f"{event} {path}")

sys.addaudithook(watch)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
if written:
    sys.exit("\\n".join(written))
"""


@pytest.mark.parametrize("name", NAMES)
def test_an_example_shows_what_it_claims(name, tmp_path):
    folder, home, scratch = (tmp_path / part for part in ("work", "work/home", "work/scratch"))
    for path in (folder, home, scratch):
        path.mkdir()
    environment = os.environ | {
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch),  # else that of a test that compiled before
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # a core each, for the tests run side by side
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WATCHED, EXAMPLES / f"{name}.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    # Libraries keep caches at home, and torch makes an empty folder among the temporary ones.
    assert sorted(path.name for path in folder.iterdir()) == ["home", "scratch"]
    assert [path for path in scratch.rglob("*") if path.is_file()] == []

    control, treated = row(done.stdout, "control"), row(done.stdout, "treated")
    assert control.rate > 0.02, "there is nothing to improve on"
    assert treated.high < control.low, done.stdout
    assert treated.error < control.error + 0.01, "fewer flips were bought with more errors"
    ratio = re.search(r"^treated over control: ([\d.]+) \([\d.]+ to ([\d.]+)\)$", done.stdout, re.M)
    # A pair of treated models has an old one of its own, so that no ratio belongs to it.
    assert (ratio is None) == (name == "lightning_module")
    assert ratio is None or float(ratio[2]) < 1


class Row:
    """What a line of the table says, as fractions."""

    def __init__(self, text: str) -> None:
        numbers = [float(number) / 100 for number in re.findall(r"([\d.]+)%", text)]
        _, self.error, self.rate, self.low, self.high = numbers


def row(printed: str, name: str) -> Row:
    (line,) = [line for line in printed.splitlines() if line.startswith(f"{name}  ")]
    return Row(line)


@pytest.mark.slow
def test_a_foreign_model_is_adopted_updated_and_judged(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "adopt_a_model.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    runs = tmp_path / "adopted" / "runs"
    old, control, treated = (
        read_predictions(runs / name / "predictions" / "test.npz")
        for name in ("old", "control", "treated")
    )
    result = compare(old=old, new=treated, control=control)
    assert result["error_rate_old"].value < 0.3, "the classes are in the wrong order"
    assert result["negative_flip_ratio"].value < 0.9
    assert result["accuracy_gain"].value > 0
    assert done.stdout.count("negative_flip_rate") == 2, "both updates are judged"


def test_the_files_of_the_page_are_those_of_the_example():
    """The page repeats the recipe, which is run here and there."""
    page = (EXAMPLES.parent / "docs" / "guides" / "adopt.md").read_text()
    text = (EXAMPLES / "adopt_a_model.py").read_text()
    recipe = text.split('RECIPE = """\\\n')[1].split('"""')[0]
    assert recipe in page
    for word in re.findall(r"--[a-z-]+(?: [\w=.:,]+)?", page.split("## 3")[0]):
        if word.startswith(("--model", "--weights", "--input", "--resize", "--method", "--set")):
            assert word in text, word


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*NAMES, *OTHERS])


def test_the_plain_loop_differs_by_the_lines_that_are_marked():
    """Its promise: two lines more, and nothing else changed."""
    text = (EXAMPLES / "plain_loop.py").read_text()
    bodies = [
        text.split(start)[1].split('"""\n', 1)[1].split("\n\n\n")[0].splitlines()
        for start in ("def train(", "def train_congruently(")
    ]
    added = [line for line in bodies[1] if line not in bodies[0]]
    assert [line for line in bodies[1] if line not in added] == bodies[0]
    assert len(added) == 2
    assert all(line.endswith("# added") for line in added)
