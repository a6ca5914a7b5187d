"""The rotation of `formats.rotation` for tensors.

It is a sequence of additions in a fixed order for each vector: a matrix product would round in an
order that depends on how many vectors there are, and the codes of a block with it.
"""

from functools import cache

import torch

from kvserving_kernels.formats.rotation import block_of, signs


def rotate(vectors: torch.Tensor) -> torch.Tensor:
    """Rotated vectors [..., head_size] as 32-bit floats."""
    size = vectors.shape[-1]
    return _transform(vectors.float() * _signs(size, vectors.device))


def rotate_back(vectors: torch.Tensor) -> torch.Tensor:
    """The inverse of `rotate`, as 32-bit floats."""
    size = vectors.shape[-1]
    return _transform(vectors.float()) * _signs(size, vectors.device)


def _transform(vectors: torch.Tensor) -> torch.Tensor:
    size = vectors.shape[-1]
    block = block_of(size)
    half = 1
    while half < block:
        pairs = vectors.unflatten(-1, (size // (2 * half), 2, half))
        first, second = pairs.unbind(-2)
        vectors = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    return vectors * block**-0.5


@cache
def _signs(size: int, device: torch.device) -> torch.Tensor:
    return torch.tensor(signs(size), dtype=torch.float32, device=device)
