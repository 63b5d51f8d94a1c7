"""Sphinx configuration of the site: `make docs`. Nothing is fetched, neither while building nor while reading."""

from __future__ import annotations

from flipguard import __version__

project = "flipguard"
author = "the authors of flipguard"
release = version = __version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
# pages/ holds the programs that render pages, not pages.
exclude_patterns = ["_build", "pages"]

# Pages are plain Markdown, for GitHub too. They need no renderer for mathematics.
myst_enable_extensions = ["colon_fence", "html_image"]
myst_heading_anchors = 4

# Docstrings mark code by single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Not with autodoc_preserve_defaults: it reads defaults from the source, and the functions of losses take theirs from
# a dataclass.
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# From a terminal session, only the typed commands are copied.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_selector = "div:not(.highlight-toml, .highlight-json) > div.highlight > pre"

html_theme = "furo"
html_title = "flipguard"
html_static_path = ["_static"]
html_css_files = ["flipguard.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "top_of_page_buttons": [],
    "light_css_variables": {
        "color-brand-primary": "#4648c4",
        "color-brand-content": "#4648c4",
        "color-brand-visited": "#6f3fa8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#a9abff",
        "color-brand-content": "#a9abff",
        "color-brand-visited": "#c9a9f0",
    },
}
pygments_style = "friendly"
pygments_dark_style = "monokai"
