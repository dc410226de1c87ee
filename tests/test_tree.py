"""Tree selection and the fixed-shape helpers against plain Python."""

import torch

from lantern.tree import DraftTree, deepest


def candidates(seed: int, width: int = 3, levels: int = 4):
    """A random candidate list the way the drafter makes it: scores fall along every path."""
    generator = torch.Generator().manual_seed(seed)
    tokens, score, parent, depth = [], [], [], []
    frontier = [(-1, 0.0)]
    for level in range(1, levels + 1):
        new = []
        for index, base in frontier:
            loss = torch.rand(width, generator=generator).sort().values
            for i in range(width):
                new.append((len(tokens), base - float(loss[i])))
                tokens.append(int(torch.randint(100, (1,), generator=generator)))
                score.append(new[-1][1])
                parent.append(index)
                depth.append(level)
        frontier = sorted(new, key=lambda item: -item[1])[:width]
    return (torch.tensor(tokens), torch.tensor(score), torch.tensor(parent), torch.tensor(depth))


def test_selection_keeps_the_best_with_their_parents():
    for seed in range(200):
        tokens, score, parent, depth = candidates(seed)
        tree = DraftTree.select(7, tokens, score, parent, depth, 12, levels=4, width=3)
        kept = sorted(range(len(score)), key=lambda i: -score[i])[:11]
        kept.sort()
        assert tree.tokens.tolist() == [7] + tokens[kept].tolist()
        assert len(tree) == 12 and tree.parent[0] == 0
        for node in range(1, len(tree)):
            old = kept[node - 1]
            expected = 0 if parent[old] < 0 else kept.index(int(parent[old])) + 1
            assert int(tree.parent[node]) == expected < node
            assert int(tree.depth[node]) == int(tree.depth[expected]) + 1


def test_ancestors_children_and_deepest_equal_plain_python():
    for seed in range(100):
        tree = DraftTree.select(0, *candidates(seed), 16, levels=4, width=3)
        parent = tree.parent.tolist()
        for node in range(len(tree)):
            climb, seen = node, {node, 0}
            while climb:
                climb = parent[climb]
                seen.add(climb)
            assert set(tree.ancestors[node].nonzero()[:, 0].tolist()) == seen
            below = [i for i in range(1, len(tree)) if parent[i] == node]
            assert [c for c in tree.children[node].tolist() if c >= 0] == below
        accept = torch.rand(len(tree), generator=torch.Generator().manual_seed(seed)) < 0.6
        reached = {0}
        for node in range(1, len(tree)):
            if accept[node] and parent[node] in reached:
                reached.add(node)
        best = max(int(tree.depth[n]) for n in reached)
        assert int(deepest(tree, accept)) == min(n for n in reached if tree.depth[n] == best)


def test_a_child_never_displaces_its_certain_parent():
    """All scores tie: conditional probability 1, or a sum too large for fp32 to tell."""
    for base, nodes in [(b, n) for b in (-0.5, -40.0, -1e4) for n in (2, 3, 4)]:
        score = torch.tensor([base, base - 1e-6, base - 2e-6])
        tree = DraftTree.select(
            0, torch.tensor([1, 2, 3]), score, torch.tensor([-1, 0, 1]), torch.tensor([1, 2, 3]),
            nodes, levels=3, width=1,
        )  # fmt: skip
        assert tree.tokens.tolist() == [0, 1, 2, 3][:nodes]
        assert tree.parent.tolist() == [0, 0, 1, 2][:nodes]


def test_root_only_is_a_tree():
    tree = DraftTree.root_only(5)
    assert tree.tokens.tolist() == [5] and tree.ancestors.tolist() == [[True]]
    assert int(deepest(tree, torch.tensor([False]))) == 0
