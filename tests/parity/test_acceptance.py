"""Acceptance over recorded random trees: greedy outcomes, and the relaxed mass of sampled ones."""

import pytest
import torch

from lantern.acceptance import Multiplicative, review
from lantern.sampling import process
from lantern.tree import DraftTree, deepest
from parity.recorded import assert_close, raw_table, rule_of, tensors, tree_of, values

CASES = values("acceptance/cases")
GREEDY = [case for case in CASES if case["processor"] is None]
SAMPLED = [case for case in CASES if case["processor"] is not None]
CLEAR = 1e-5  # closer calls may fall differently under another order of summation


def name_of(case: dict) -> str:
    return f"{case['case']}-{case['name']}"


def load(case: dict) -> tuple[DraftTree, torch.Tensor, torch.Tensor, list[list[int]]]:
    """Tree, node logits, neighbour table and paths; nodes renumbered in the order in which the
    official scan over paths meets them, which is what draft order means here."""
    data, key = tensors("acceptance/cases"), f"c{case['case']:03d}"
    rows = [[n for n in row if n >= 0] for row in data[f"{key}.retrieve_indices"].tolist()]
    order = list(dict.fromkeys(node for row in rows for node in row))
    number = {node: i for i, node in enumerate(order)}
    paths = [[number[node] for node in row] for row in rows]
    parents, depth = [0] * len(order), [0] * len(order)
    for path in paths:
        for level, (parent, node) in enumerate(zip(path, path[1:], strict=False), start=1):
            parents[node], depth[node] = parent, level
    tokens = data[f"{key}.node_tokens"][order]
    tree = tree_of(tokens, torch.tensor(parents), torch.tensor(depth))
    name = case["table"]
    table = raw_table() if name == "nn512" else data[f"table.{name}"].int()
    return tree, data[f"{key}.node_logits"][order], table, paths


def recorded_path(case: dict, paths: list[list[int]]) -> list[int]:
    return paths[case["best_candidate"]][: case["accept_length"] + 1]


def path_to(tree: DraftTree, node: int) -> list[int]:
    return tree.ancestors[node].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("case", GREEDY, ids=name_of)
def test_greedy(case):
    tree, logits, table, paths = load(case)
    rule = rule_of(case["lantern"], case["k"], case["delta"])
    verdict = review(tree, logits.softmax(-1), logits.argmax(-1), rule, table, greedy=True)
    end = int(deepest(tree, verdict.accept))
    if case["min_margin"] > CLEAR:
        assert path_to(tree, end) == recorded_path(case, paths)
    # The next root is the argmax at the last accepted node.
    last = recorded_path(case, paths)[-1]
    assert logits[last].equal(tensors("acceptance/cases")[f"c{case['case']:03d}.sample_p"])


def eagle_probs(logits: torch.Tensor, settings: dict) -> torch.Tensor:
    """Probabilities under the official EAGLE code's order of filters, top-p before top-k."""
    z = process(logits, settings["temperature"], 0, settings["top_p"])
    return process(z, 1.0, settings["top_k"], 1.0).softmax(-1)


def walk(case: dict, tree, probs, table) -> dict:
    """The official walk with uniform numbers, except that a refusal removes only the candidate and
    A(c), as ours does by design: the official code removes the k + 1 nearest codes, which breaks
    the bound on the total variation. In Python floats."""
    uniforms = tensors("acceptance/cases")[f"c{case['case']:03d}.uniforms"].tolist()
    found = {"path": [0], "mass": {}, "used": 0, "closest": 1.0}
    relaxed, k, delta = case["lantern"], case["k"], case["delta"]
    while True:
        node = found["path"][-1]
        p = probs[node].double().tolist()
        for child in [i for i in range(1, len(tree)) if int(tree.parent[i]) == node]:
            if found["used"] == len(uniforms):
                return found  # the official walk ended sooner and no more numbers were recorded
            token, members, mass = int(tree.tokens[child]), [], 0.0
            budget = 0.0 if not relaxed else delta if delta <= 1 else (delta - 1) * p[token]
            for code in table[token, :k].tolist() if relaxed else []:
                # A neighbour without mass decides nothing, however close the sum is.
                if p[code]:
                    found["closest"] = min(found["closest"], abs(mass + p[code] - budget))
                if mass + p[code] > budget:
                    break
                mass += p[code]
                members.append(code)
            found["mass"][child] = mass
            u = uniforms[found["used"]]
            found["used"] += 1
            found["closest"] = min(found["closest"], abs(u - p[token] - mass))
            if u <= p[token] + mass:
                found["path"].append(child)
                break
            for gone in (token, *members):
                p[gone] = 0.0
            p = [value / sum(p) for value in p]
        else:
            return found | {"left": torch.tensor(p)}


def outcomes():
    for case in SAMPLED:
        tree, logits, table, paths = load(case)
        probs = eagle_probs(logits, case["processor"])
        yield case, tree, probs, table, paths, walk(case, tree, probs, table)


@pytest.fixture(scope="module")
def sampled() -> list:
    return list(outcomes())


def test_relaxed_mass(sampled):
    compared = 0
    for case, tree, probs, table, _, found in sampled:
        rule = rule_of(case["lantern"], case["k"], case["delta"])
        choices = torch.zeros(len(tree), dtype=torch.long)
        mass = review(tree, probs, choices, rule, table, greedy=False).mass
        if found["closest"] > CLEAR:
            for node, expected in found["mass"].items():
                assert abs(float(mass[node]) - expected) < 2e-5, name_of(case)
                compared += isinstance(rule, Multiplicative) or expected > 0
    assert compared > 200


def test_size_of_the_first_relaxed_set(sampled):
    # The first candidate sees the whole distribution, so here both codes must agree.
    for case, tree, probs, table, paths, _ in sampled:
        if case["lantern"] and case["min_margin"] > CLEAR and case["delta"] > 0:
            code = int(tree.tokens[paths[0][1]])
            rule = rule_of(True, case["k"], case["delta"])
            p = probs[0]
            members = rule.members(p[code][None], p[table[code, : case["k"]].long()][None])
            assert int(members.sum()) == case["n_neighbours_in_budget"][0], name_of(case)


def test_outcomes_where_only_the_relaxed_set_is_removed(sampled):
    # Recorded beside the official outcome: the one if a refusal removes A(c) only, which is ours.
    count = changed = 0
    for case, _, _, _, paths, found in sampled:
        variant = case["budget_set_only_variant"]
        if variant is None or "left" not in found or found["closest"] < CLEAR:
            continue
        accepted = len(found["path"]) - 1
        assert accepted == variant["accept_length"], name_of(case)
        assert found["path"] == paths[variant["best_candidate"]][: accepted + 1], name_of(case)
        assert found["used"] == variant["uniforms_consumed"], name_of(case)
        count += 1
        changed += (accepted, found["used"]) != (case["accept_length"], case["uniforms_consumed"])
    assert count > 95 and changed > 4


def test_plain_outcomes_and_residuals(sampled):
    # Without a non-empty relaxed set among the refused, both codes remove the same mass.
    count = 0
    for case, _, _, _, paths, found in sampled:
        if case["rejected_with_nonempty_budget"] or case["min_margin"] < CLEAR:
            continue
        assert found["path"] == recorded_path(case, paths), name_of(case)
        sample_p = tensors("acceptance/cases")[f"c{case['case']:03d}.sample_p"]
        assert_close(found["left"].float(), sample_p, 1e-5)
        count += 1
    assert count > 40


def test_no_uniform_restart(sampled):
    # Removing k + 1 codes per refusal can use up all mass; the official code then goes on with a
    # uniform distribution, refused tokens included. Removing only A(c) leaves what was not refused.
    count = 0
    for case, tree, _, _, _, found in sampled:
        if case["name"] == "residual_zero_to_uniform":
            sample_p = tensors("acceptance/cases")[f"c{case['case']:03d}.sample_p"]
            assert_close(sample_p, torch.full((64,), 1 / 64), 1e-6)
            refused = tree.tokens[tree.depth == 1]
            assert found["left"][refused].eq(0).all() and found["left"].max() > 2 / 64
            count += 1
    assert count == 4
