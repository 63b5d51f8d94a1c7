"""Comparisons and verdicts as a person reads them: terminal, Markdown and notebook."""
