"""What `Comparison` and `Verdict` show of themselves: text, Markdown and the HTML of a notebook."""

from __future__ import annotations

from flipguard.comparison import Comparison
from flipguard.gate import Verdict
from flipguard.render.markdown import comparison_markdown, verdict_markdown
from flipguard.render.notebook import comparison_html, verdict_html
from flipguard.render.terminal import comparison_parts, plain_text, verdict_parts


class ComparisonDisplay:
    """A comparison as text, Markdown or HTML."""

    def __init__(self, result: Comparison) -> None:
        self._result = result

    def text(self, *, all_metrics: bool = False) -> str:
        """Return what `flipguard compare` prints, without colour."""
        return plain_text(comparison_parts(self._result, all_metrics=all_metrics))

    def markdown(self) -> str:
        """Return Markdown for a pull request."""
        return comparison_markdown(self._result)

    def html(self) -> str:
        """Return a small table for a notebook."""
        return comparison_html(self._result)


class VerdictDisplay:
    """A verdict as text, Markdown or HTML."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def text(self) -> str:
        """Return what `flipguard gate` prints, without colour."""
        return plain_text(verdict_parts(self._verdict))

    def markdown(self) -> str:
        """Return Markdown for a pull request."""
        return verdict_markdown(self._verdict)

    def html(self) -> str:
        """Return a small table for a notebook."""
        return verdict_html(self._verdict)
