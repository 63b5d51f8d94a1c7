"""The page about environments that flipguard was installed into: sizes and versions."""

from __future__ import annotations

from typing import Any

from pages.places import committed

EXTRAS = ("base", "report", "spark", "train")


def installs_page() -> str:
    """Return the page, from the committed rows."""
    document = committed("installs")
    machine = document["machine"]
    rows = sorted(
        document["rows"],
        key=lambda row: (row["versions"], _short(row), EXTRAS.index(row["extra"])),
    )
    lines = [
        "# Where flipguard installs",
        "",
        f"Made by `{document['command']}` on {machine['system']} ({machine['cpu']}). Each row is a new environment with the wheel, "
        "one extra and nothing else. *Lowest* has the lowest version that `pyproject.toml` allows of each package it names, "
        "*newest* the newest one. Every row wrote, read and compared files of all formats; the extras also did their own "
        "work: a report and a picture, a count by Spark, two trained models.",
        "",
        "| versions | Python | extra | packages | size | works |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in rows:
        works = "yes" if row["works"] else f"no: {row['problem']}"
        lines.append(
            f"| {row['versions']} | {row['python']} | {row['extra']} | {row['all_packages']} | {row['megabytes']:,} MB "
            f"| {works} |"
        )
    return "\n".join([*lines, "", *_notes(document, rows), *_packages(rows), ""])


def _short(row: dict[str, Any]) -> str:
    return ".".join(row["python"].split(".")[:2])


def _notes(document: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    sizes = document["bytes"]
    lines = [
        f"- flipguard itself is a wheel of {sizes['wheel'] / 1e6:.1f} MB; its source archive has "
        f"{sizes['source archive'] / 1e6:.1f} MB. Building again gives the same bytes (a test).",
    ]
    for row in rows:
        if found := row.get("tests"):
            told = ", ".join(f"{many:,} {kind}" for kind, many in found.items() if many)
            lines.append(f"- Tests of the evidence side with the lowest versions: {told}.")
    lines += [f"- {note}" for note in document.get("notes", [])]
    if document["no_interpreter"]:
        versions = " and ".join(document["no_interpreter"])
        lines.append(f"- Not tried: Python {versions}, which this machine does not have.")
    return [*lines, ""]


def _packages(rows: list[dict[str, Any]]) -> list[str]:
    found: dict[str, dict[str, str]] = {}
    columns = list(dict.fromkeys((row["versions"], _short(row)) for row in rows))
    for row in rows:
        for name, version in row["packages"].items():
            # If two extras hold a package, only the first is sure to have named it.
            found.setdefault(name, {}).setdefault((row["versions"], _short(row)), version)
    lines = [
        "| package | " + " | ".join(f"{versions}, {python}" for versions, python in columns) + " |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for name in sorted(found):
        cells = (found[name].get(column, "") for column in columns)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines
