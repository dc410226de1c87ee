"""A short soak on a tiny model: no wrong picture, no hang, no growth."""

from soak import SMALL, cases, soak, to_markdown
from tiny_models import write_class_model

SECONDS = 6


def test_visitors_of_all_kinds_disturb_nobody(tmp_path, monkeypatch):
    write_class_model(tmp_path, "llamagen-b-256", drafter=True)
    monkeypatch.setenv("LANTERN_MODELS", str(tmp_path))
    runs = cases("llamagen-b-256", ["macaw", "goldfish"], **SMALL)
    figures = soak(runs, SECONDS, 3, seed=1, LANTERN_MODEL="llamagen-b-256")
    print(to_markdown(figures, "a tiny model"))
    assert not figures["wrong"]
    assert figures["outcomes"]["finished, equal to a run alone"] >= 1
    assert figures["outcomes"]["refused: line full"] >= 1
    memory = figures["memory MiB"]
    assert memory["last"] - memory["settled"] < 200
