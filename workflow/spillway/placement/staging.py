"""Bringing a layer's host experts to GPU memory with the copy engine while the layer before it computes.

Two buffers take turns. A large step reads nearly every host expert anyway, so one copy at the link's full rate is
cheaper than kernels that read the same bytes once per block of rows. Weights never change, so a buffer that already
holds a layer needs no second copy: the copy for the first layer of the next step starts under the last layer of this.
"""

from collections.abc import Sequence

import torch

from spillway.placement.pages import PlacedTensor
from spillway.placement.timing import seconds


class Buffer:
    """One staging buffer: which layer's experts it holds, and the events that guard it."""

    def __init__(self) -> None:
        self.holds: int | None = None
        self.filled = torch.cuda.Event()
        self.read = torch.cuda.Event()


class Staging:
    """Copies for the layers that have host experts, in the model's order; `layers[i]` are the tensors of layer i."""

    def __init__(self) -> None:
        self.layers: list[Sequence[PlacedTensor]] = []
        self.stream = torch.cuda.Stream()
        self._buffers = (Buffer(), Buffer())

    def fetch(self, index: int) -> None:
        """Start the copy of a layer unless its buffer holds it; it waits for the kernels that still read the buffer."""
        buffer = self._buffers[index % 2]
        if buffer.holds == index:
            return
        # Nothing recorded yet means nothing to wait for.
        self.stream.wait_event(buffer.read)
        for tensor in self.layers[index]:
            tensor.copy(self.stream)
        buffer.filled.record(self.stream)
        buffer.holds = index

    def begin(self, index: int) -> None:
        """Make the current stream wait for a layer's experts, and start the copy of the layer after it."""
        self.fetch(index)
        torch.cuda.current_stream().wait_event(self._buffers[index % 2].filled)
        if self._following(index) % 2 != index % 2:
            self.fetch(self._following(index))

    def end(self, index: int) -> None:
        """Note that the kernels queued so far are the last that read this layer's buffer."""
        self._buffers[index % 2].read.record(torch.cuda.current_stream())
        # An odd number of layers brings the first one to the buffer of the last, which is free only now.
        self.fetch(self._following(index))

    def forget(self, index: int) -> None:
        """Copy a layer again before its next use: other experts of it are on the host now."""
        buffer = self._buffers[index % 2]
        if buffer.holds == index:
            buffer.holds = None

    def copy_seconds(self, index: int) -> float:
        """Time of one layer's copy with nothing else running; afterwards the buffer holds that layer."""
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()

        def copy() -> None:
            for tensor in self.layers[index]:
                tensor.copy(stream)

        taken = seconds(copy)
        buffer = self._buffers[index % 2]
        buffer.filled.record(stream)
        buffer.holds = index
        return taken

    def _following(self, index: int) -> int:
        return (index + 1) % len(self.layers)
