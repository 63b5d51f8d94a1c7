"""What renders the generated pages and pictures: a module a page, or a kind of pages.

`docs/build.py` lists them. Imports go one way: from there to the pages, and from these to what several of them share,
which is where files are (`places`), tables in pages that are written by hand (`filling`), numbers in words
(`figures`), a chart (`charts`, `labels`) and the rows of ELODI's price (`cheaper_ways`).
"""
