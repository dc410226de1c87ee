"""One module a tab, each with ``build(studio)``. A new tab is one file and one line here."""

from app.tabs import about, compare

TABS = [("Compare", compare.build), ("How it works", about.build)]
