"""Removed settings: earlier runs that did not use them are read, resumed and named as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flipguard.errors import InputError
from flipguard.run_document import RUN
from flipguard.runs.config import RetiredError, from_dict
from flipguard.training import Run
from tests.training.tiny import bytes_of, tiny, trained


def written_before(run: Run, *, widen: str = "off", one_phase: bool = False) -> None:
    """Put the removed settings back into `run.json`, as an earlier flipguard wrote them."""
    document = json.loads((run.folder / RUN).read_text())
    document["config"]["machine"]["widen"] = widen
    document["config"]["options"]["one_phase"] = one_phase
    (run.folder / RUN).write_text(json.dumps(document))


def test_an_earlier_run_is_read_and_resumed(tmp_path: Path) -> None:
    whole = trained(tiny("elodi"), tmp_path / "whole")
    stopped = trained(tiny("elodi", machine={"minutes": 1e-9}), tmp_path / "stopped")
    assert stopped.status == "stopped"
    written_before(stopped)
    assert Run.read(stopped.folder).config == stopped.config
    assert bytes_of(trained(tiny("elodi"), stopped.folder, resume=True).folder) == bytes_of(
        whole.folder
    )


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"widen": "auto"}, "`machine.widen = 'auto'`, which was removed"),
        ({"one_phase": True}, "`options.one_phase = True`, which was removed"),
    ],
)
def test_an_earlier_run_that_used_them_is_refused(
    before: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = trained(tiny("elodi", epochs=1), tmp_path / "run")
    written_before(run, **before)
    with pytest.raises(InputError) as refusal:
        Run.read(run.folder)
    assert said in str(refusal.value)
    assert str(refusal.value).endswith("; train it again without it.")


def test_a_configuration_may_say_no_to_them() -> None:
    values = {"method": "elodi", "options": {"one_phase": False}, "machine": {"widen": "off"}}
    assert from_dict(values) == from_dict({"method": "elodi"})
    with pytest.raises(RetiredError, match=r"`machine\.widen`, which was removed"):
        from_dict({"machine": {"widen": "on"}})
