"""JSON documents as text: the one form in which results are written."""

from __future__ import annotations

import io
import json
from typing import Any


def json_text(document: Any) -> str:
    """Return a document as indented JSON, in which NaN and infinity are errors.

    >>> json_text({"churn": None})
    '{\\n  "churn": null\\n}\\n'
    """
    text = io.StringIO()
    # Not `json.dumps`, which keeps every name and number as a string until all are joined: several
    # times the memory of the text, for a result of many groups.
    json.dump(document, text, indent=2, ensure_ascii=False, allow_nan=False)
    text.write("\n")
    return text.getvalue()
