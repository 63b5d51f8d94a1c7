"""The page about the size and speed of the report."""

from __future__ import annotations

from pages.places import committed


def report_page() -> str:
    """Return the page, from the committed rows."""
    document = committed("report")
    machine = document["machine"]
    lines = [
        "# Size and speed of the report",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, {machine['browser']}, Python {machine['python']}). *Responds "
        "in* is the time until a filter, clicked as soon as the page is open, has changed the table of samples (median of three). "
        "Writing includes starting the chart library, once per process. A page contains at most 10,000 flips, and says so if there "
        "are more.",
        "",
        "| samples | flips | size | written in | responds in |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        lines.append(
            f"| {row['samples']:,} | {row['flips']:,} | {row['bytes'] / 1e6:.2f} MB "
            f"| {row['seconds_to_write']:.1f} s | {row['seconds_to_answer']:.2f} s |"
        )
    return "\n".join(lines) + "\n"
