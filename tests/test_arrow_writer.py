"""Arrow files in pieces: pyarrow, which has its own code for it, reads the same from them."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipguard import Predictions, read_predictions, write_predictions
from flipguard.predictions.arrow_footer import read_arrow_footer
from flipguard.predictions.arrow_writer import write_arrow


def written(pieces: list[pl.DataFrame], metadata: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    write_arrow(pieces, stream, metadata)
    return stream.getvalue()


FRAMES = {
    "numbers": pl.DataFrame({"a": [1, None, 3], "b": [0.5, float("nan"), None]}),
    "text": pl.DataFrame({"é": ["x", None, ""], "flag": [True, False, None]}),
    "lists": pl.DataFrame({"logits": [[1.0, 2.0], None, []], "s": [{"x": 1}, {"x": 2}, None]}),
    "times": pl.DataFrame({"t": pl.Series([0, 1, None]).cast(pl.Datetime("us", "UTC"))}),
    "one row": pl.DataFrame({"n": [1]}),
}


@given(
    frame=st.sampled_from(list(FRAMES)),
    times=st.integers(1, 5),
    metadata=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
        max_size=4,
    ),
)
def test_pyarrow_reads_what_was_written(frame: str, times: int, metadata: dict[str, str]) -> None:
    pieces = [FRAMES[frame]] * times
    content = written(pieces, metadata)
    expected = pl.concat(pieces).to_arrow()
    stored = {k.encode(): v.encode() for k, v in metadata.items()}
    file = pa.ipc.open_file(content)
    assert file.num_record_batches == times
    found = file.read_all()
    found.validate(full=True)
    # The same as a stream: its first message has the metadata too.
    for table in (found, pa.ipc.open_stream(content[8:]).read_all()):
        assert (table.schema.metadata or {}) == stored
        assert table.schema.equals(expected.schema)
        assert pl.DataFrame(table).equals(pl.concat(pieces))


def test_polars_and_our_own_reader_agree(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    path.write_bytes(written([FRAMES["text"]] * 3, {"key": "☃" * 100}))
    assert pl.read_ipc(path).equals(pl.concat([FRAMES["text"]] * 3))
    assert read_arrow_footer(path) == (["é", "flag"], {"key": "☃" * 100})


@pytest.mark.parametrize("suffix", [".arrow", ".parquet"])
def test_categories_within_lists_become_text(suffix: str, tmp_path: Path) -> None:
    kinds = pl.Series([["a"], ["b", "a"]], dtype=pl.List(pl.Categorical))
    frame = pl.DataFrame(
        {
            "id": [1, 2],
            "label": ["x", "y"],
            "tags": kinds,
            "pair": pl.Series([["a"], ["b"]], dtype=pl.Array(pl.Enum(["a", "b"]), 1)),
            "both": [{"t": "a", "n": 1}, {"t": "b", "n": 2}],
        },
        schema_overrides={"both": pl.Struct({"t": pl.Categorical, "n": pl.Int64})},
    )
    path = tmp_path / f"t{suffix}"
    write_predictions(Predictions.from_frame(frame), path)
    found = read_predictions(path).frame.collect()
    assert found["tags"].to_list() == [["a"], ["b", "a"]]
    assert found["pair"].to_list() == [["a"], ["b"]]
    assert found["both"].to_list() == [{"t": "a", "n": 1}, {"t": "b", "n": 2}]
    assert found.schema["tags"] == pl.List(pl.String)
