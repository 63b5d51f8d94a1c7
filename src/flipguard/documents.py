"""JSON documents as text, in the format that all results share."""

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
    # `json.dumps` keeps every name and number as a separate string until it joins them. For a
    # result of many groups that takes several times the memory of the text.
    json.dump(document, text, indent=2, ensure_ascii=False, allow_nan=False)
    text.write("\n")
    return text.getvalue()
