"""Speed and memory of counting: the page of all rows, and the table in the guide to large data."""

from __future__ import annotations

from pages.filling import filled
from pages.places import DOCS, committed


def evidence_page() -> str:
    """Return the page, from the committed rows."""
    document = committed("evidence")
    machine = document["machine"]
    lines = [
        "# Speed and memory of counting",
        "",
        f"Measured by `{document['command']}` on {machine['cores']} cores of {machine['cpu']} with "
        f"{machine['memory_gib']} GiB (Python {machine['python']}, Polars {machine['polars']}, "
        f"numpy {machine['numpy']}, pandas {machine['pandas']}). Each case runs in a separate "
        "process. Times are the best of several runs on a warm disk.",
        "",
        "| case | seconds | peak MiB |",
        "|---|---:|---:|",
    ]
    section = None
    for row in document["rows"]:
        if row.get("section", section) != section:
            section = row["section"]
            lines.append(f"| **{section}** | | |")
        if "seconds" in row:
            name = row["case"].split(": ", 1)[1]
            lines.append(f"| {name} | {row['seconds']:.3f} | {row['peak_mib']:,} |")
        else:
            lines.append(f"| {row['case']} | failed: {' '.join(row['failed'])[:80]} | |")
    lines += ["", "| ratio of times | |", "|---|---:|"]
    lines += [f"| {r['of']} / {r['to']} | {r['ratio']:.2f} |" for r in document["ratios"]]
    return "\n".join(lines) + "\n"


def large_data_page() -> str:
    """Return the guide to large data, with flipguard's rows filled in."""
    rows = committed("evidence")["rows"]
    table = ["| case | seconds | peak MiB |", "|---|---:|---:|"]
    section = ""
    for row in rows:
        section = row.get("section", section)
        if row["case"].split(": ", 1)[1].startswith("flipguard") and "seconds" in row:
            told = section if "start" not in section else "a whole command, 1,000 rows"
            table.append(f"| {told} | {row['seconds']:.2f} | {row['peak_mib']:,} |")
    return filled(DOCS / "large-data.md", "evidence", table)
