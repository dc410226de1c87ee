"""Distances between sets of images in the judge's feature space.

Frechet distance as in FID (arXiv 1706.08500), precision and recall as in arXiv 1904.06991, with
the judge's 256 features in place of Inception's: figures compare with each other, not with FIDs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Squared Frechet distance between Gaussians fitted to features a [N, d] and b [M, d].

    Biased upwards for few samples: compare only sets of equal size.
    """
    a, b = a.double(), b.double()
    mean = (a.mean(0) - b.mean(0)).square().sum()
    cov_a, cov_b = torch.cov(a.T), torch.cov(b.T)
    values, vectors = torch.linalg.eigh(cov_a)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    middle = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    return float(mean + cov_a.trace() + cov_b.trace() - 2 * middle)


def precision_recall(real: Tensor, drawn: Tensor, k: int = 3) -> tuple[float, float]:
    """Share of drawn [M, d] inside the real manifold and of real [N, d] inside the drawn one; a
    manifold is the union of balls that reach each sample's k-th neighbour."""
    return _covered(drawn, real, k), _covered(real, drawn, k)


def _covered(points: Tensor, manifold: Tensor, k: int) -> float:
    radius = torch.cdist(manifold, manifold).kthvalue(k + 1, dim=1).values  # the 1st is itself
    return float((torch.cdist(points, manifold) <= radius).any(1).float().mean())
