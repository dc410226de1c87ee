"""Statistics the tests need, without scipy."""

from torch import Tensor


def chi_square_ok(observed: Tensor, expected: Tensor, z: float = 4.0) -> bool:
    """Whether counts agree with expectation: chi-square below its mean plus z standard
    deviations; cells expected fewer than 5 times are pooled."""
    rare = expected < 5
    cells = [(float(o), float(e)) for o, e in zip(observed[~rare], expected[~rare], strict=True)]
    if rare.any():
        cells.append((float(observed[rare].sum()), float(expected[rare].sum())))
    statistic = sum((o - e) ** 2 / e for o, e in cells if e > 0)
    freedom = len(cells) - 1
    return statistic < freedom + z * (2 * freedom) ** 0.5
