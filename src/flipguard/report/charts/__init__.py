"""What the charts show, as Vega-Lite: data and marks; colours are names that the page's style sets.

Names from files are data only. They are never a field, an expression or a title, so that nothing
in them is ever read as more than text.
"""
