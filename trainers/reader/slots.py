"""The fixed ring of buffers that batches are read into.

A slot holds one batch of one rank. On a CPU the batch that is handed out *is* the slot. With a GPU
the slot is pinned and has a twin on the device: filling it starts the transfer on the reader's own
stream, and the consumer's stream waits for that transfer alone. Either way nothing is allocated
after the reader was made: memory is `num_slots` times a rank's batch, twice that with a GPU (once
on each side).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Microbatch:
    """What one logical worker computes in one step; b places, on the reader's device."""

    logical_worker: int
    images: torch.Tensor  # [b, H, W, C] uint8; zeros where padded
    labels: torch.Tensor  # [b] int64; gather.IGNORED_LABEL where padded
    ids: torch.Tensor  # [b] int64; order.PADDING where padded
    mask: torch.Tensor  # [b] bool; False where padded


class Slot:
    """Room for the microbatches of some logical workers.

    Args:
        logical_workers: k of them.
        microbatch_size: b.
        shape: of an image, (H, W, C).
        device: where batches are handed out; `cpu` or `cuda:N`.
    """

    def __init__(
        self,
        logical_workers: range,
        microbatch_size: int,
        shape: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        on_gpu = device.type == "cuda"
        places = (len(logical_workers), microbatch_size)

        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, pin_memory=on_gpu)

        self._host = (
            empty((*places, *shape), torch.uint8),
            empty(places, torch.int64),
            empty(places, torch.int64),
            empty(places, torch.bool),
        )
        self._transfer = _Transfer(self._host, device) if on_gpu else None
        handed_out = self._transfer.twins if self._transfer else self._host
        self.microbatches = tuple(
            Microbatch(worker, *parts)
            for worker, *parts in zip(logical_workers, *handed_out, strict=True)
        )
        images, labels, ids, mask = self._host
        # The same memory as arrays, one row a place, for `gather`.
        self.images: NDArray[np.uint8] = images.view(labels.numel(), -1).numpy()
        self.labels: NDArray[np.int64] = labels.view(-1).numpy()
        self.ids: NDArray[np.int64] = ids.view(-1).numpy()
        self.mask: NDArray[np.bool_] = mask.view(-1).numpy()

    def before_fill(self) -> None:
        """Wait until the slot's last transfer has left its memory."""
        if self._transfer:
            self._transfer.done.synchronize()

    def after_fill(self) -> None:
        """Start the transfer to the device."""
        if self._transfer:
            self._transfer.start()

    def hand_out(self) -> None:
        """Let the consumer's stream wait for the transfer."""
        if self._transfer:
            torch.cuda.current_stream(self._transfer.device).wait_event(self._transfer.done)

    def take_back(self) -> None:
        """Note what the consumer's stream has still to do before the slot may be overwritten."""
        if self._transfer:
            self._transfer.unused.record(torch.cuda.current_stream(self._transfer.device))


class _Transfer:
    """Copies of pinned tensors on a device, refreshed on a stream of their own."""

    def __init__(self, sources: tuple[torch.Tensor, ...], device: torch.device) -> None:
        self.device = device
        self.twins = tuple(torch.empty_like(source, device=device) for source in sources)
        self.done = torch.cuda.Event()
        self.unused = torch.cuda.Event()
        self._sources = sources
        self._stream = torch.cuda.Stream(device)

    def start(self) -> None:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self.unused)
            for twin, source in zip(self.twins, self._sources, strict=True):
                twin.copy_(source, non_blocking=True)
            self.done.record(self._stream)
