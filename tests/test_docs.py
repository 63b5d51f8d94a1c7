"""The documentation is true: what it shows was run, its links lead somewhere, its site opens."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipguard import METRICS, Predictions, write_predictions
from tests.browsers import chromium, missing
from tests.report.conftest import opened  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXAMPLE = ROOT / "examples" / "road_signs.py"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
ELIDED = "…"


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.M)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- the files that pages speak of ---------------------------------------------------------------


def example(name: str) -> Any:
    """An example as a module."""
    found = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example writes, and what else pages name: new, two controls, pinned samples."""
    signs = example("road_signs")
    folder = tmp_path_factory.mktemp("signs")
    signs.FOLDER = folder
    signs.generate()
    for name, of in (("new", "congruent"), ("seed1", "retrained"), ("seed2", "retrained")):
        shutil.copy(folder / f"{of}.parquet", folder / f"{name}.parquet")
    (folder / "must_stay_right.csv").write_text("id\nframe-00000\nframe-00001\n")
    return folder


@pytest.fixture
def folder(example_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, as the current folder."""
    place = tmp_path / "files"
    shutil.copytree(example_files, place)
    monkeypatch.chdir(place)
    return place


# -- Python --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", with_blocks("python"), ids=named)
def test_python_on_a_page_runs(page: Path, folder: Path) -> None:
    """All blocks of a page, one after the other, in a folder with the files that pages speak of."""
    run_python_of(page)


def run_python_of(page: Path) -> dict[str, Any]:
    """Run all blocks of a page as one program; return its names."""
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile("\n".join(blocks(page, "python")), str(page), "exec"), names)
    return names


def test_the_lines_of_the_guide_for_python_run(folder: Path) -> None:
    """Each line of its table gives a result, with the objects that the page makes."""
    from flipguard import Comparison, Verdict
    from flipguard.matrices import Matrix

    page = DOCS / "guides" / "python.md"
    made = run_python_of(page)
    lines = re.findall(r"^\|[^|]+\| `((?:fg|result)\.[^`]+)` \|", page.read_text(), flags=re.M)
    assert len(lines) >= 23
    for line in lines:
        found = eval(line, made)
        known = isinstance(found, Comparison | Verdict | Matrix) or hasattr(found, "columns")
        assert known, line


# -- the terminal --------------------------------------------------------------------------------


@dataclass
class Command:
    """What is typed after a prompt, and what the page shows below it."""

    typed: str
    shown: list[str] = field(default_factory=list)
    only_form: bool = False  # the page says that numbers differ from machine to machine


def commands(page: Path) -> list[list[Command]]:
    """The commands of each console block of a page."""
    found = []
    pattern = r"(<!-- numbers differ -->\n)?^```console\n(.*?)^```"
    for mark, block in re.findall(pattern, page.read_text(), flags=re.DOTALL | re.M):
        typed: list[Command] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                typed.append(Command(line[2:], only_form=bool(mark)))
            elif typed[-1].typed.endswith("\\") and not typed[-1].shown:
                typed[-1].typed += "\n" + line
            else:
                typed[-1].shown.append(line)
        found.append(typed)
    return found


def elsewhere(command: Command) -> bool:
    """What sets up an environment, or is what other tests run: this is not done here."""
    return command.typed.startswith(("make ", "pip ", "python examples/", "flipguard demo"))


def told_by(line: str) -> str:
    """A line without its numbers, and without the room that they take."""
    return re.sub(r"\s+", " ", re.sub(r"[+-]?<?\d[\d,.]*", "#", line)).strip()


def assert_printed(command: Command, output: str) -> None:
    """What the page shows is what was printed; `…` stands for any number of lines."""
    form = told_by if command.only_form else str.rstrip
    printed = [form(line) for line in output.rstrip().splitlines()]
    shown, parts = [form(line) for line in command.shown], [[]]
    for line in shown:
        if line.strip() == ELIDED:
            parts.append([])
        else:
            parts[-1].append(line)
    where = 0
    for i, part in enumerate(parts):
        while part and not part[-1]:
            part.pop()
        if i == 0:
            assert printed[: len(part)] == part
            where = len(part)
        else:
            starts = range(where, len(printed) - len(part) + 1)
            found = [at for at in starts if printed[at : at + len(part)] == part]
            assert found, "\n".join([f"$ {command.typed}", *printed, "and not", *part])
            where = found[0] + len(part)
    if len(parts) == 1:
        assert printed == parts[0]


def shell(
    script: str, folder: Path, *, strict: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script where `flipguard` is on the path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", *(["-e"] if strict else []), "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        # Small nets, beside other tests: a core each.
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", **environment},
    )


def assert_session(typed: list[Command], folder: Path) -> None:
    """Types the commands of a block into one shell."""
    typed = [command for command in typed if not elsewhere(command)]
    if not typed:
        return
    mark = "\x1e"
    lines = []
    for command in typed:
        # Between two commands the shell tells the exit code, and leaves it as it was.
        lines.append(f"{command.typed}\n_code=$?; printf '{mark}%s{mark}' $_code; (exit $_code)")
    done = shell("\n".join(lines), folder, strict=False)
    told = done.stdout.split(mark)
    assert len(told) == 2 * len(typed) + 1, done.stdout + done.stderr
    for command, output, code in zip(typed, told[::2], told[1::2], strict=False):
        verdict = (output.split() or [""])[0]
        expected = {"FAIL": 1, "INCONCLUSIVE": 3}.get(verdict, 0)
        assert int(code) == expected, f"{command.typed}\n{output}\n{done.stderr}"
        if command.shown:
            assert_printed(command, output)
    assert "Traceback" not in done.stderr


def prepare(page: Path, folder: Path) -> None:
    """What one page needs beside the example's files."""
    if page.name == "cifar10.md":
        cifar10_predictions(folder)
    if page.name == "spark.md" and shutil.which("java") is None:
        missing("there is no Java on this machine")
    if page == DOCS / "guides" / "train.md":
        (folder / "recipe.toml").write_text(blocks(page, "toml")[0])
    if page.name == "measure.md":
        # Its fraud scores are written by the page itself.
        exec(compile("\n".join(blocks(page, "python")), str(page), "exec"), {})
    if page.name == "analyses.md":
        example("members").generate()
    if page.name == "adopt.md":
        example("adopt_a_model").write_files(folder)
    if page.name == "compressed-models.md":
        run_python_of(page)
    if page.name == "report.md":
        from PIL import Image

        (folder / "images").mkdir()
        for i in range(50):
            Image.new("L", (8, 8), color=5 * i).save(folder / "images" / f"frame-{i:05d}.png")


def cifar10_predictions(folder: Path) -> None:
    """The thirteen prediction files, from an archive of `names`, `pred` and `label`."""
    archive = os.environ.get("FLIPGUARD_CIFAR10_PREDICTIONS")
    if archive is None:
        pytest.skip("FLIPGUARD_CIFAR10_PREDICTIONS names no archive of the thirteen models")
    for file in folder.glob("*.parquet"):
        file.unlink()
    classes = np.array(
        "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905
    )
    with np.load(archive) as held:
        for name, pred in zip(held["names"], held["pred"], strict=True):
            table = Predictions.from_arrays(
                ids=np.arange(len(pred)), targets=classes[held["label"]], labels=classes[pred]
            )
            write_predictions(table, folder / f"{name}.parquet")
    (folder / "gate.toml").write_text(blocks(DOCS / "cifar10.md", "toml")[0])


def sessions() -> Iterator[Any]:
    for page in with_blocks("console"):
        if all(elsewhere(command) for block in commands(page) for command in block):
            continue
        text = "\n".join(blocks(page, "console"))
        long = re.search(r"flipguard train|init quantization|spark", text)
        marks = [pytest.mark.slow] if long else []
        yield pytest.param(page, id=named(page), marks=marks)


@pytest.mark.parametrize("page", list(sessions()))
def test_the_terminal_says_what_a_page_shows(page: Path, folder: Path) -> None:
    prepare(page, folder)
    for block in commands(page):
        assert_session(block, folder)


def test_a_page_that_shows_something_else_is_found_out() -> None:
    said = "one\n\ntwo 12.5 %\nthree\n"
    assert_printed(Command("", ["one", "  …", "three"]), said)
    assert_printed(Command("", ["one", "", "two 12.5 %", "…"]), said)
    assert_printed(Command("", ["…", "two  99.1 %", "…"], only_form=True), said)
    for shown in (["one"], ["…", "two"], ["two 12.5 %", "…"], ["…", "three", "…", "one"]):
        with pytest.raises(AssertionError):
            assert_printed(Command("", shown), said)


# -- policies, workflows, tables -----------------------------------------------------------------


@pytest.mark.parametrize(
    "page", [page for page in with_blocks("toml") if "[[rule]]" in page.read_text()], ids=named
)
def test_policies_on_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    from flipguard import Policy

    for i, text in enumerate(blocks(page, "toml")):
        path = tmp_path / f"{i}.toml"
        path.write_text(text)
        assert Policy.read(path).rules


def test_configurations_of_runs_are_valid(tmp_path: Path) -> None:
    from flipguard.runs.config import from_dict, read_toml

    pages = (DOCS / "runs.md", DOCS / "guides" / "train.md", DOCS / "guides" / "adopt.md")
    texts = [text for page in pages for text in blocks(page, "toml")]
    for i, text in enumerate(texts):
        path = tmp_path / f"{i}.toml"
        path.write_text(text)
        assert from_dict(read_toml(path)).recipe.epochs


GUIDE = DOCS / "guides" / "gate-in-ci.md"


def test_the_example_judges_by_the_policy_of_the_guide(folder: Path) -> None:
    from flipguard import Policy

    (folder / "guide.toml").write_text(blocks(GUIDE, "toml")[0])
    assert Policy.read("guide.toml").rules == Policy.read("gate.toml").rules


def candidate(name: str, folder: Path) -> None:
    """Makes one of the example's candidates, or none, the new model."""
    (folder / "new.parquet").unlink()
    if name != "absent":
        shutil.copy(folder / f"{name}.parquet", folder / "new.parquet")


@pytest.mark.parametrize(("new", "code"), [("congruent", 0), ("retrained", 1), ("absent", 2)])
def test_the_workflow_of_the_guide_works(new: str, code: int, folder: Path) -> None:
    """Its own steps, by a shell as GitHub starts it: those that fetch and install are left out."""
    import yaml

    candidate(new, folder)
    (workflow,) = blocks(GUIDE, "yaml")
    steps = yaml.safe_load(workflow)["jobs"]["gate"]["steps"]
    judge, summary = (
        next(step for step in steps if step.get("name") == name) for name in ("judge", "summary")
    )
    assert shell(judge["run"], folder).returncode == code
    if code == 2:
        return
    assert summary["if"] == "always()"
    shell(summary["run"], folder, GITHUB_STEP_SUMMARY="summary").check_returncode()
    told = (folder / "summary").read_text()
    assert told.startswith("### ✅ Pass" if code == 0 else "### ❌ Fail")
    (upload,) = (step for step in steps if "upload-artifact" in step.get("uses", ""))
    for name in upload["with"]["path"].split():
        assert (folder / name).stat().st_size


@pytest.mark.parametrize(
    ("new", "code", "says"),
    [
        ("congruent", 0, "It may ship."),
        ("retrained", 1, "Refused."),
        ("absent", 2, "Not judged."),
    ],
)
def test_the_script_of_the_guide_works(new: str, code: int, says: str, folder: Path) -> None:
    candidate(new, folder)
    (script,) = blocks(GUIDE, "bash")
    done = shell(script, folder, strict=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(says)


def test_the_script_of_the_guide_tells_an_inconclusive_verdict(folder: Path) -> None:
    (folder / "gate.toml").write_text('[[rule]]\nmetric = "negative_flip_rate"\nmax = 0.014\n')
    (script,) = blocks(GUIDE, "bash")
    done = shell(script, folder, strict=False)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].startswith("Inconclusive: ")


def test_the_sample_sizes_of_the_guide_are_right() -> None:
    """Nine times in ten, by the binomial and the interval that the gate uses."""
    from scipy.stats import binom

    from flipguard.statistics import wilson

    rows = re.findall(r"^\| (\d) % \|(.*)\|$", GUIDE.read_text(), flags=re.M)
    assert len(rows) == 3
    for percent, cells in rows:
        limit = int(percent) / 100
        sizes = [int(cell.replace(",", "")) for cell in cells.split("|")]
        for n, times in zip(sizes, (0.5, 0.75, 1.25, 1.5), strict=True):
            flips = np.arange(int(5 * limit * n))
            low, high = wilson(flips, n, confidence=0.95)
            right = high <= limit if times < 1 else low > limit
            assert 0.88 < binom.pmf(flips[right], n, times * limit).sum() < 0.94


# -- generated pages, links ----------------------------------------------------------------------


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "build.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_metric_has_a_card() -> None:
    page = (DOCS / "metrics.md").read_text()
    assert re.findall(r"^## `(\w+)`$", page, flags=re.MULTILINE) == list(METRICS)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.M)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = 1
        anchor = plain
        while anchor in found:
            anchor, again = f"{plain}-{again}", again + 1
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```(?!\{figure).*?^```", "", page.read_text(), flags=re.DOTALL | re.M)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    targets += re.findall(r"^```\{figure\} (\S+)$", text, flags=re.M)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_relative_to(ROOT), f"{target} leads out of the repository"
        assert found.exists(), f"{named(page)} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{named(page)} links to {target}"


def test_every_page_is_in_the_navigation() -> None:
    listed = set()
    parents = ("index.md", "maintainers.md", "results/studies.md", "api/index.md")
    for page in (DOCS / parent for parent in parents):
        for block in blocks(page, r"\{toctree\}"):
            for line in block.splitlines():
                entry = re.sub(r".*<(.*)>", r"\1", line.strip())
                if entry and not entry.startswith(":"):
                    listed |= {path.resolve() for path in page.parent.glob(f"{entry}.md")}
    assert listed | {DOCS / "index.md"} == set(DOCS.rglob("*.md"))


# -- the site ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, where a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", folder / "trees", DOCS, folder / "html"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def test_make_docs_builds_it_so() -> None:
    made = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    assert "sphinx-build -W --keep-going -q -b html" in made


@pytest.mark.slow
def test_the_site_fetches_nothing(site: Path) -> None:
    loaded = r"""(?:<(?:script|img|iframe|source)[^>]*\bsrc|<link[^>]*\bhref)=["']?(?:https?:)?//"""
    for page in site.rglob("*.html"):
        assert not re.search(loaded, page.read_text()), page.name
    fetched = r"(?:url\(|@import)\s*[\"']?(?:https?:)?//"
    for file in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        assert not re.search(fetched, file.read_text()), file.name


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import importlib
    import tomllib

    for name in tomllib.loads((DOCS / "api.toml").read_text()):
        page = (site / "api" / f"{name}.html").read_text()
        for public in importlib.import_module(name).__all__:
            assert f'id="{name}.{public}"' in page


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["index", "guides/measure", "guides/choose", "gallery"])
def test_the_site_opens_from_disk(name: str, width: int, site: Path, opened: Any) -> None:  # noqa: F811
    found = opened(site / f"{name}.html", width=width, theme="dark")
    assert found.page.locator("h1").count() == 1
    sizes = "[document.documentElement.scrollWidth, window.innerWidth]"
    needed, given = found.page.evaluate(sizes)
    assert needed <= given
    pictures = "[...document.images].every((one) => one.complete && one.naturalWidth > 0)"
    assert found.page.evaluate(pictures)
    assert found.troubles() == []


def test_the_example_of_the_pages_tells_its_story(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "road-signs" / "flips.csv").exists()
