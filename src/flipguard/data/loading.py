"""From a spec to a data set: a name, or the path of somebody's own data."""

from __future__ import annotations

import difflib
from pathlib import Path

from flipguard.data.base import DataSet
from flipguard.data.files import data_root, located
from flipguard.data.folders import load_image_folder
from flipguard.data.hub import load_hub
from flipguard.data.npz import load_npz
from flipguard.data.options import Options
from flipguard.data.registry import DATA_SETS
from flipguard.data.texts import is_text_folder, load_texts
from flipguard.errors import InputError, listed

HUB = "hf:"


def load_data(spec: str, *, root: Path | None = None) -> DataSet:
    """Loads the data set that a spec names: ``name[:key=value,...]`` or a path.

    A path is an .npz of arrays, a .jsonl or .jsonl.gz of texts, a folder of either text files or
    class folders of images, or, behind ``hf:``, what the datasets library loads. The files of
    named sets are looked for in `root`, else in the folder that FLIPGUARD_DATA names, else in
    ``data``.

    >>> data = load_data("mnist1d:train=200,test=100,seed=3")
    >>> data.kind, len(data.class_names), len(data.train), len(data.test)
    ('vector', 10, 200, 100)
    """
    options = Options.of(spec.removeprefix(HUB))
    if spec.startswith(HUB):
        return load_hub(options.name, options)
    known = DATA_SETS.get(options.name)
    if known is not None:
        return known.load(options, data_root(root))
    path = located(options.name)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return load_texts(path, options)
    if path.suffix == ".npz":
        return load_npz(path, options)
    if path.is_dir():
        return (
            load_texts(path, options) if is_text_folder(path) else load_image_folder(path, options)
        )
    raise _unknown(options.name)


def _unknown(name: str) -> InputError:
    close = difflib.get_close_matches(name, DATA_SETS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the names are {', '.join(DATA_SETS)}."
    return InputError(
        "Expected `data` to be the name of a data set, an .npz or .jsonl file, or a folder, but "
        f"got {listed([name])}; {hint}"
    )
