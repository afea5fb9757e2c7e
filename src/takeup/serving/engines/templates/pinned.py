"""Pinned host memory, allocated in large blocks, for copies to the device that overlap computation.

PyTorch rounds every pinned allocation up to a power of two: tensors allocated one by one may take nearly twice their
size, and a template has thousands.
"""

from __future__ import annotations

import torch

BLOCK_BYTES = 256 << 20
ALIGN_BYTES = 256


class PinnedMemory:
    """Arena for tensors of `size_bytes` bytes in total. A block is freed when none of its tensors is used any more."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes, self._rest = size_bytes, torch.empty(0, dtype=torch.uint8)

    def lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the host: a pinned copy if it is on a CUDA device; host tensors are not copied."""
        return self.copied(tensor) if tensor.device.type == "cuda" else tensor.to("cpu")

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory."""
        num_bytes = tensor.numel() * tensor.element_size()
        return self._piece(num_bytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def _piece(self, num_bytes: int) -> torch.Tensor:
        if not num_bytes:  # the end of a block may be misaligned for the dtype, even for an empty view
            return torch.empty(0, dtype=torch.uint8)
        if num_bytes > len(self._rest):
            self._rest = _block(max(num_bytes, min(self._left_bytes, BLOCK_BYTES)))
        piece, self._rest = self._rest[:num_bytes], self._rest[-(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES :]
        self._left_bytes -= num_bytes
        return piece


def _block(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
