"""Render the generated pages and pictures: one module per page, or per kind of page.

`docs/build.py` lists the pages. Imports go one way: from there to the pages, and from the pages to the shared modules:
paths (`places`), tables in hand-written pages (`filling`), formatted numbers (`figures`), charts (`charts`, `labels`)
and the measured rows of ELODI's cost (`cheaper_ways`).
"""
