"""The page of the size and speed of the report."""

from __future__ import annotations

from pages.places import committed


def report_page() -> str:
    """What a report weighs and how soon it answers, from the committed rows."""
    document = committed("report")
    machine = document["machine"]
    lines = [
        "# Size and speed of the report",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, {machine['browser']}, Python {machine['python']}). A "
        "page answers when a filter that is clicked at once has changed the table of samples; the median of three times. "
        "Writing includes the start of the chart library, once a process. More than 10,000 flips are not carried, and the "
        "page says so.",
        "",
        "| samples | flips | size | written in | answers in |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        lines.append(
            f"| {row['samples']:,} | {row['flips']:,} | {row['bytes'] / 1e6:.2f} MB "
            f"| {row['seconds_to_write']:.1f} s | {row['seconds_to_answer']:.2f} s |"
        )
    return "\n".join(lines) + "\n"
