"""The rotation of `formats.rotation` for tensors.

What is stored is rotated by additions in a fixed order: a matrix product would round in an order
that depends on how many vectors there are, and the codes of a block with it.
"""

from functools import cache

import torch

from kvserving_kernels.formats.rotation import block_of, signs


def rotate(vectors: torch.Tensor) -> torch.Tensor:
    """Rotated vectors [..., head_size] as 32-bit floats, rounded alike in any company."""
    size = vectors.shape[-1]
    vectors = vectors.float() * _signs(size, vectors.device)
    block = block_of(size)
    half = 1
    while half < block:
        pairs = vectors.unflatten(-1, (size // (2 * half), 2, half))
        first, second = pairs.unbind(-2)
        vectors = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    return vectors * block**-0.5


def rotate_queries(queries: torch.Tensor) -> torch.Tensor:
    """As `rotate`, by one product with a matrix: for what is not stored."""
    return queries.float() @ _matrix(queries.shape[-1], queries.device)


def rotate_back(vectors: torch.Tensor) -> torch.Tensor:
    """The inverse of `rotate`, as 32-bit floats, by one product with a matrix."""
    return vectors.float() @ _matrix(vectors.shape[-1], vectors.device).mT


@cache
def _signs(size: int, device: torch.device) -> torch.Tensor:
    return torch.tensor(signs(size), dtype=torch.float32, device=device)


@cache
def _matrix(size: int, device: torch.device) -> torch.Tensor:
    return rotate(torch.eye(size, device=device))
