"""The batched verdict against a literal sequential implementation, and the rules' guarantees."""

import pytest
import torch
from chi_square import chi_square_ok

from lantern.acceptance import Exact, Jsd, Lantern, Multiplicative, review, rule_for
from lantern.config import DecodeOptions
from lantern.neighbours import neighbour_table
from lantern.tree import DraftTree, deepest

V = 24


def random_tree(generator, nodes: int, levels: int = 4, width: int = 4) -> DraftTree:
    """A random tree with distinct sibling tokens, parents first."""
    parent, depth, children = [0], [0], [0]
    while len(parent) < nodes:
        q = int(torch.randint(len(parent), (1,), generator=generator))
        if depth[q] < levels and children[q] < width:
            parent.append(q)
            depth.append(depth[q] + 1)
            children.append(0)
            children[q] += 1
    tokens = [int(torch.randint(V, (1,), generator=generator))] + [0] * (nodes - 1)
    for q in range(nodes):
        below = [i for i in range(1, nodes) if parent[i] == q]
        for i, token in zip(below, torch.randperm(V, generator=generator).tolist(), strict=False):
            tokens[i] = token
    as_tensor = torch.tensor
    return DraftTree(
        as_tensor(tokens), as_tensor(parent), as_tensor(depth), torch.zeros(nodes), levels, width
    )


def random_case(seed: int, nodes: int = 12):
    generator = torch.Generator().manual_seed(seed)
    tree = random_tree(generator, nodes)
    spread = float(torch.rand(1, generator=generator)) * 4
    probs = (torch.randn(nodes, V, generator=generator) * spread).softmax(-1)
    codes = torch.nn.functional.normalize(torch.randn(V, 4, generator=generator), dim=-1)
    noise = -torch.empty(nodes, V).exponential_(generator=generator).log()
    choices = (probs.log() + noise).argmax(-1)
    k = int(torch.randint(1, V, (1,), generator=generator))
    delta = float(torch.rand(1, generator=generator)) * 0.6
    return tree, probs, choices, neighbour_table(codes), Lantern(k, delta)


def subset(p: list[float], token: int, near: list[int], k: int, delta: float) -> list[int]:
    """A(token): longest prefix of its k nearest codes with mass at most delta."""
    total, members = 0.0, []
    for code in near[:k]:
        total += p[code]
        if total > delta:
            break
        members.append(code)
    return members


def sequential(tree, probs, choices, table, k, delta):
    """Walk the tree as the paper tells it, in plain Python floats; returns the accepted path and
    how close any decision was to falling the other way."""
    node, path, closest = 0, [0], 1.0
    while True:
        p = probs[node].double().tolist()
        y = int(choices[node])
        for child in [i for i in range(1, len(tree)) if int(tree.parent[i]) == node]:
            token = int(tree.tokens[child])
            near = table[token].tolist()
            members = subset(p, token, near, k, delta)
            total = 0.0
            for code in near[:k]:
                total += p[code]
                closest = min(closest, abs(total - delta))
            if y == token or y in members:
                node = child
                path.append(child)
                break
            for gone in (token, *members):
                p[gone] = 0.0
            total = sum(p)
            p = [value / total for value in p]
        else:
            return path, closest


def path_of(tree, accept) -> list[int]:
    end = int(deepest(tree, accept))
    return tree.ancestors[end].nonzero()[:, 0].tolist()


def test_batched_verdict_equals_the_sequential_walk():
    relaxed = clear = 0
    for seed in range(3000):
        tree, probs, choices, table, rule = random_case(seed)
        verdict = review(tree, probs, choices, rule, table, greedy=False)
        expected, closest = sequential(tree, probs, choices, table, rule.k, rule.delta)
        if closest < 1e-5:
            continue  # fp32 and fp64 may settle a tie differently
        clear += 1
        path = path_of(tree, verdict.accept)
        assert path == expected, seed
        relaxed += any(
            int(tree.tokens[b]) != int(choices[a]) for a, b in zip(path, path[1:], strict=False)
        )
    assert clear > 2900 and relaxed > 300


def test_exact_verdict_equals_the_sequential_walk():
    for seed in range(500):
        tree, probs, choices, table, _ = random_case(seed)
        accept = review(tree, probs, choices, Exact(), None, greedy=False).accept
        assert path_of(tree, accept) == sequential(tree, probs, choices, table, 0, 0.0)[0]


def test_greedy_accepts_what_outweighs_the_maximum_and_takes_the_longest_path():
    for seed in range(800):
        tree, probs, _, table, rule = random_case(seed)
        choices = probs.argmax(-1)
        verdict = review(tree, probs, choices, rule, table, greedy=True)
        depth_reached, ends = {0: 0}, []
        for i in range(1, len(tree)):
            p = probs[tree.parent[i]].tolist()
            token = int(tree.tokens[i])
            members = subset(p, token, table[token].tolist(), rule.k, rule.delta)
            mass = p[token] + sum(p[c] for c in members)
            if abs(mass - max(p)) > 1e-6:
                assert bool(verdict.accept[i]) == (mass >= max(p)), seed
            if verdict.accept[i] and int(tree.parent[i]) in depth_reached:
                depth_reached[i] = int(tree.depth[i])
        longest = max(depth_reached.values())
        ends = [i for i, d in depth_reached.items() if d == longest]
        assert path_of(tree, verdict.accept)[-1] == ends[0]


def test_relaxed_distribution_stays_within_delta():
    """Moving p(A(c)) onto c changes p by at most delta in total variation, and only A(c) moves."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        p = (torch.randn(V, generator=generator) * 3).softmax(-1)
        codes = torch.nn.functional.normalize(torch.randn(V, 4, generator=generator), dim=-1)
        table = neighbour_table(codes)
        delta = float(torch.rand(1, generator=generator))
        rule = Lantern(int(torch.randint(1, V, (1,), generator=generator)), delta)
        c = int(torch.randint(V, (1,), generator=generator))
        near = table[c, : rule.k].long()
        members = near[rule.members(p[None, c], p[near][None])[0]]
        relaxed = p.clone()
        relaxed[members] = 0
        relaxed[c] += p[members].sum()
        assert 0.5 * float((relaxed - p).abs().sum()) <= delta + 1e-6
        # longest prefix: the next neighbour would break the budget
        if len(members) < rule.k:
            assert float(p[near[: len(members) + 1]].sum()) > delta - 1e-6
        assert torch.equal(members, near[: len(members)])


def test_only_the_accepted_subset_is_removed_after_a_refusal():
    """Two children: the second is judged against p without {c} + A(c), nothing more. The official
    code removes the k + 1 nearest."""
    table = torch.tensor([[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0]], dtype=torch.int32)
    tree = DraftTree(
        torch.tensor([0, 0, 3]), torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]),
        torch.zeros(3), 1, 2,
    )  # fmt: skip
    probs = torch.tensor([[0.1, 0.1, 0.3, 0.5]]).expand(3, 4)
    # Child 0 has A = {1}; refused since the target drew 2. Left: 2 and 3 at 0.375 and 0.625. Child
    # 3 has A = {2}, because 0.375 <= 0.38; with k + 1 removed nothing would be left to accept.
    choices = torch.tensor([2, 2, 2])
    verdict = review(tree, probs, choices, Lantern(3, 0.38), table, greedy=False)
    assert verdict.accept.tolist() == [False, False, True]
    torch.testing.assert_close(verdict.mass, torch.tensor([0.0, 0.1, 0.375]))
    assert not review(tree, probs, choices, Lantern(3, 0.37), table, greedy=False).accept.any()


def emitted(tree, probs, choices, rule, table) -> int:
    """First token of a one-level step: the accepted child's, else the target's own."""
    path = path_of(tree, review(tree, probs, choices, rule, table, greedy=False).accept)
    return int(tree.tokens[path[1]]) if len(path) > 1 else int(choices[0])


def test_exact_rule_and_sequential_accept_reject_both_follow_the_target():
    """First-token distributions, chi-square against p: shared-noise verdict, and the paper's rule
    that accepts child c with its residual probability (q = 1) and else samples the residual."""
    generator = torch.Generator().manual_seed(1)
    p = (torch.randn(V, generator=generator) * 1.2).softmax(-1)
    children = torch.tensor([3, 7, 1])
    tree = DraftTree(
        torch.tensor([0, *children]), torch.zeros(4, dtype=torch.long), torch.tensor([0, 1, 1, 1]),
        torch.zeros(4), 1, 3,
    )  # fmt: skip
    count = 6000
    noise = -torch.empty(count, V).exponential_(generator=generator).log()
    choices = (p.log() + noise).argmax(-1)
    shared = torch.zeros(V)
    accepted_shared = 0
    for y in choices:
        token = emitted(tree, p.expand(4, V), y.expand(4), Exact(), None)
        shared[token] += 1
        accepted_shared += token in children.tolist()
    paper, accepted_paper = torch.zeros(V), 0
    for _ in range(count):
        left = p.clone()
        for c in children.tolist():
            if torch.rand(1, generator=generator) <= left[c]:
                paper[c] += 1
                accepted_paper += 1
                break
            left[c] = 0
            left /= left.sum()
        else:
            paper[int(torch.multinomial(left, 1, generator=generator))] += 1
    assert chi_square_ok(shared, p * count)
    assert chi_square_ok(paper, p * count)
    expected = float(p[children].sum())
    spread = 4 * (expected * (1 - expected) / count) ** 0.5
    assert abs(accepted_shared / count - expected) < spread
    assert abs(accepted_paper / count - expected) < spread
    # and the test can fail: a skewed sample is recognised
    assert not chi_square_ok(shared.flip(0), p * count)


@pytest.mark.parametrize("mode, k, delta, kind", [
    ("ar", 100, 0.2, Exact), ("eagle2", 100, 0.2, Exact), ("lantern", 0, 0.2, Exact),
    ("lantern", 100, 0.0, Exact), ("lantern", 100, 0.2, Lantern),
])  # fmt: skip
def test_rule_of_each_mode(mode, k, delta, kind):
    assert isinstance(rule_for(DecodeOptions(mode=mode, k=k, delta=delta)), kind)


def test_unknown_rule_is_named():
    with pytest.raises(ValueError, match="'nonsense'"):
        rule_for(DecodeOptions(rule="nonsense"))


def moved(p: torch.Tensor, token: int, members: torch.Tensor) -> torch.Tensor:
    """p with the mass of ``members`` (indices) on ``token``."""
    q = p.clone()
    q[token] += p[members].sum()
    q[members] = 0.0
    return q


def jsd(p: torch.Tensor, q: torch.Tensor) -> float:
    """Jensen-Shannon divergence in bits, from its definition."""
    m = (p + q) / 2
    return float((torch.xlogy(p, p / m) + torch.xlogy(q, q / m)).nan_to_num().sum()) / 2 / 0.6931472


@pytest.mark.parametrize("rule", [Jsd(12, 0.1), Jsd(12, 0.3), Multiplicative(12, 1.5)], ids=str)
def test_each_rule_takes_the_longest_prefix_within_its_budget(rule):
    generator = torch.Generator().manual_seed(1)
    some = 0
    for _ in range(300):
        p = (torch.randn(V, generator=generator).double() * 2).softmax(-1)
        token, *near = torch.randperm(V, generator=generator)[: rule.k + 1].tolist()
        near = torch.tensor(near)
        count = int(rule.members(p[token][None], p[near][None]).sum())
        some += 0 < count < rule.k

        def spent(n, p=p, token=token, near=near):
            if isinstance(rule, Multiplicative):
                return float(moved(p, token, near[:n])[token] / p[token])
            return jsd(p, moved(p, token, near[:n]))

        budget = rule.factor if isinstance(rule, Multiplicative) else rule.delta
        assert spent(count) <= budget + 1e-9
        assert count == rule.k or spent(count + 1) > budget
    assert some > 100


def test_nearest_takes_the_choice_itself_or_the_nearest_cover():
    differs = 0
    for seed in range(1500):
        tree, probs, choices, table, rule = random_case(seed)
        generator = torch.Generator().manual_seed(seed)
        codes = torch.nn.functional.normalize(torch.randn(V, 4, generator=generator), dim=-1)
        table = neighbour_table(codes)
        verdict = review(tree, probs, choices, rule, table, greedy=False, codes=codes)
        first = review(tree, probs, choices, rule, table, greedy=False)
        for node in range(len(tree)):
            y, p = int(choices[node]), probs[node].tolist()
            kids = [i for i in range(1, len(tree)) if int(tree.parent[i]) == node]
            covering = []
            for kid in kids:
                token = int(tree.tokens[kid])
                members = subset(p, token, table[token].tolist(), rule.k, rule.delta)
                if y == token or y in members:
                    covering.append((float((codes[token] - codes[y]).norm()), kid))
            taken = [kid for kid in kids if verdict.accept[kid]]
            assert taken == ([min(covering)[1]] if covering else []), seed
            if len(covering) > 1 and taken and first.accept[kids].any():
                differs += not bool(first.accept[taken[0]])
    assert differs > 50
