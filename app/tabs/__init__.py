"""One module a tab, each with ``build(studio, page)``. A new tab is one file, one line
here and its name in app/i18n (``page.tab.<id>``)."""

from app.tabs import about, ambiguity, codebook, compare, sweep

TABS = [
    ("compare", compare.build),
    ("sweep", sweep.build),
    ("ambiguity", ambiguity.build),
    ("codebook", codebook.build),
    ("about", about.build),
]
