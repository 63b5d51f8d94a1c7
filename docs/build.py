"""Render the generated pages and pictures of the documentation: `make docs`.

With ``--check`` nothing is written, and the exit code says whether a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from pages import (
    api,
    brief,
    calibration,
    cheaper,
    cheaper_chart,
    cheaper_ways,
    demo,
    ensembles,
    evidence,
    examples,
    installs,
    loss_costs,
    losses,
    methods,
    metrics,
    mutants,
    report,
    studies,
    terminal,
    training,
)
from pages.places import DOCS

PAGES = {
    "results.md": brief.brief_page,
    "methods.md": methods.methods_page,
    "losses.md": losses.losses_page,
    "metrics.md": metrics.metrics_page,
    "results/examples.md": examples.examples_page,
    "results/demo.md": demo.demo_page,
    "results/report.md": report.report_page,
    "results/cifar.md": training.cifar_page,
    "results/texts.md": training.texts_page,
    "results/ensembles.md": ensembles.ensembles_page,
    "results/cheaper.md": cheaper.cheaper_page,
    **{
        f"images/cheaper-{name}.svg": partial(cheaper_chart.cheaper_chart, name)
        for name in cheaper_ways.cheaper_documents()
    },
    "results/studies.md": studies.overview_page,
    **{
        f"results/studies/{name}.md": partial(studies.study_page, name)
        for name in studies.results()
    },
    **{studies.picture_of(name): partial(studies.study_chart, name) for name in studies.results()},
    "results/losses.md": loss_costs.loss_costs_page,
    "results/installs.md": installs.installs_page,
    "results/evidence.md": evidence.evidence_page,
    "results/calibration.md": calibration.calibration_page,
    "results/mutants.md": mutants.mutants_page,
    "guides/choose.md": examples.choose_page,
    "large-data.md": evidence.large_data_page,
    "api/index.md": api.index_page,
    **{f"api/{name}.md": partial(api.module_page, name) for name in api.modules()},
    **{
        f"images/terminal-{name}.svg": partial(terminal.terminal, name)
        for name in terminal.COMMANDS
    },
}


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for name, render in PAGES.items():
        path, text = DOCS / name, render()
        if options.check:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"docs/{name}")
    if stale:
        sys.exit(f"Out of date: {', '.join(stale)}; run `make docs`.")


if __name__ == "__main__":
    main()
