"""One module a tab, each with ``build(studio, page)``. A new tab is one file and one line here."""

from app.tabs import about, ambiguity, codebook, compare, sweep

TABS = [
    ("compare", "Compare", compare.build),
    ("sweep", "Sweep", sweep.build),
    ("ambiguity", "Ambiguity", ambiguity.build),
    ("codebook", "Codebook", codebook.build),
    ("about", "How it works", about.build),
]
