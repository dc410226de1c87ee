"""Choosing draft trees, and the benchmark's tables, on a tiny model and on hand-made figures."""

import json
from itertools import product

import pytest
import torch
from tiny_decoder import TINY, make_caption, make_decoder

from lantern.__main__ import main
from lantern.bench import Plan, run_bench
from lantern.config import DecodeOptions, TreeShape, VQConfig
from lantern.models.vq import VQModel
from lantern.pipeline import ModelInfo, Pipeline
from lantern.profile import report
from lantern.trace import NodeEvent, StepEvent
from lantern.tuning import Costs, Rates, Tuner, best_shape


class Prompts:
    """Stands in for a text encoder: every prompt has its own random caption."""

    limit = TINY.prefix

    def check(self, prompt: str) -> str:
        return prompt

    def condition(self, prompt: str):
        return make_caption(len(prompt))


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    defaults = {"k": 8, "top_k": 0, "nodes": 4, "depth": 2, "branch": 2}
    torch.manual_seed(0)
    vq = VQModel(
        VQConfig(codebook_size=64, codebook_dim=4, base_width=8, channel_multipliers=(1,),
                 z_channels=8, res_blocks=1, patch_size=2, norm_groups=4)
    ).eval().requires_grad_(False)  # fmt: skip
    info = ModelInfo("tiny", defaults, ("one", "three"))
    return Pipeline("tiny", info, Prompts(), make_decoder(), vq)


def step(nodes) -> StepEvent:
    return StepEvent(1, 1, (), tuple(NodeEvent(0, p, d, 0.0, a) for p, d, a in nodes), {})


def test_rates_count_children_of_accepted_parents_only():
    rates = Rates()
    # root; children 1 and 2, the second accepted; a grandchild under each
    tree = [(0, 0, False), (0, 1, False), (0, 1, True), (1, 2, False), (2, 2, True)]
    rates.add(step(tree))
    assert rates.tries == {(1, 0): 1, (1, 1): 1, (2, 0): 1}
    assert rates.rate(1, 0) == 0 and rates.rate(1, 1) == 1
    assert rates.rate(1, 7) == 0


def test_expected_length_is_the_best_sum_of_node_probabilities():
    rates = Rates()
    for depth, (rank, hits) in product((1, 2, 3), enumerate((60, 25, 10))):
        rates.tries[depth, rank], rates.hits[depth, rank] = 100_000, hits * 1000
    levels = rates.expected(depth=2, branch=3, most=6)
    # .6, then .6*.6, .25, .6*.25 and .25*.6
    assert levels == pytest.approx([1, 1.6, 1.96, 2.21, 2.36, 2.51], abs=1e-3)
    assert rates.expected(depth=1, branch=2, most=9) == pytest.approx([1, 1.6, 1.85], abs=1e-3)


def test_best_shape_weighs_length_against_cost():
    rates = Rates()
    for depth, (rank, share) in product(range(1, 9), enumerate((0.8, 0.1))):
        rates.tries[depth, rank], rates.hits[depth, rank] = 1000, int(1000 * share)
    flat = {n: 1.0 + 0.001 * n for n in (1, 2, 4, 8, 16, 32, 64)}
    free, dear = ({b: (x, x) for b in (1, 2, 3, 4, 6, 8)} for x in (0.0, 5.0))
    assert best_shape(rates, Costs(flat, free))[0].nodes > 8
    assert best_shape(rates, Costs(flat, dear))[0].nodes == 1  # drafting never pays


def test_auto_chooses_and_remembers(pipeline, tmp_path):
    trace, image = pipeline.generate("one", mode="eagle2-coupled", nodes="auto", seed=3)
    assert trace.options["auto_tree"] and trace.complete and image.width == 8
    assert len(list(tmp_path.glob("lantern/costs-*.json"))) == 1
    plain, _ = pipeline.generate("one", mode="ar", seed=3)
    assert plain.tokens == trace.tokens and not plain.options["auto_tree"]
    known = pipeline.tuner.costs(DecodeOptions(mode="eagle2", k=8, top_k=0))
    again = Tuner(pipeline).costs(DecodeOptions(mode="eagle2", k=8, top_k=0))
    assert known == again  # read back, not measured again
    next(tmp_path.glob("lantern/costs-*.json")).write_text("{")
    assert Tuner(pipeline).costs(DecodeOptions(mode="eagle2", k=8, top_k=0)).verify


def test_bench_tables(pipeline, tmp_path, capsys):
    file = tmp_path / "bench.json"
    options = pipeline.options()
    plan = Plan(("one", "three"), seeds=2, repeats=1)
    run_bench(pipeline, options, ["eagle2", "lantern"], plan, file)
    text = capsys.readouterr().out
    assert "| ar | - |" in text and "| lantern | 4x2x2 |" in text and "c(N)/c(1)" in text
    runs = json.loads(file.read_text())["runs"]
    assert {r["variant"] for r in runs} >= {"ar", "eagle2", "lantern"}
    tokens = {(r["variant"], r["prompt"], r["seed"]): r["tokens"] for r in runs}
    assert all(tokens["ar", p, s] == t for (v, p, s), t in tokens.items() if v.startswith("eagle2"))


def test_sweep_table(pipeline, capsys):
    run_bench(pipeline, pipeline.options(), [], Plan(("one",), 1, 1), None, sweep="relaxation")
    text = capsys.readouterr().out
    assert "| k | delta 0.05 | delta 0.1 | delta 0.2 | delta 0.4 |" in text
    assert text.count("\n| 1000 |") == 2  # one row for each temperature
    assert "k 100, 300, 1000; delta 0.05, 0.1, 0.2, 0.4; temperature 0, 1;" in text
    run_bench(pipeline, pipeline.options(), [], Plan(("one",), 1, 1), None, sweep="temperature")
    text = capsys.readouterr().out
    assert "| lantern-coupled |" in text and "temperature 1.2 |" in text


def test_scaling_table(capsys):
    arguments = ["--width", "64", "--layers", "1", "--heads", "1", "--nodes", "4"]
    assert main(["scaling", *arguments]) == 0
    text = capsys.readouterr().out
    assert text.count("\n| ") == 7 and "| 1024 | 1143 |" in text
    assert main(["scaling", "--width", "64", "--heads", "0"]) == 2


def test_profile_counts_operations(pipeline, monkeypatch):
    text = report(pipeline, "one", pipeline.options(), ["ar", "lantern"])
    ar, lantern = text.split("\n\n")[1:]
    assert ar.startswith("| ar |") and lantern.startswith("| lantern |")
    for table in (ar, lantern):
        rows = [line.split(" | ") for line in table.splitlines()[2:]]
        shares = [float(row[-1].rstrip(" %|")) for row in rows]
        assert shares[-1] == 100 and 95 <= sum(shares[:-1]) <= 105
    monkeypatch.setattr("lantern.profile.SKIPPED", 100)
    with pytest.raises(ValueError, match="complete after 100 steps"):
        report(pipeline, "one", pipeline.options(), ["ar"])


def test_sweeps_have_their_own_modes(capsys):
    assert main(["bench", "--sweep", "temperature", "--modes", "ar"]) == 2
    assert "leave --modes out" in capsys.readouterr().err


def test_tree_shape_of_ar_is_left_alone(pipeline):
    options = DecodeOptions(mode="ar", tree=TreeShape(9, 3, 3))
    assert pipeline.tuner.choose(options) is options
