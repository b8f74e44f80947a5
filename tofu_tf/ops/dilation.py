"""Dilated windows in pieces: rows that a dilation apart share an image, as TensorFlow itself does.

Few kernels know dilations: on the CPU only that of Conv2D does. Every d-th row of an image padded
to a multiple of d makes an image of its own (SpaceToBatchND); there the windows are plain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.ops import windows
from tofu_tf.ops.registry import Emitter, Piece


@dataclasses.dataclass(frozen=True, slots=True)
class Apart:
    """Per spatial dimension the dilation, the padding of the image, and rows to make it whole."""

    block: tuple[int, ...]
    borders: tuple[windows.Range, ...]
    extra: tuple[int, ...]
    dtype: str

    def image(self, emit: Emitter, tensor: str, part: str) -> str:
        """The image, padded, in images of rows that are a dilation apart."""
        return self._move(emit, "SpaceToBatchND", tensor, self._paddings, part)

    def results(self, emit: Emitter, tensor: str, part: str) -> str:
        """What windows make of an image, in what they make of such images."""
        return self._move(emit, "SpaceToBatchND", tensor, [(0, n) for n in self.extra], part)

    def whole_image(self, emit: Emitter, tensor: str) -> str:
        """`image` undone."""
        return self._move(emit, "BatchToSpaceND", tensor, self._paddings, "together")

    def whole_results(self, emit: Emitter, tensor: str) -> str:
        """`results` undone."""
        return self._move(emit, "BatchToSpaceND", tensor, [(0, n) for n in self.extra], "together")

    def attributes(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """`attrs` of the same op on images that are apart."""
        return {**windows.without_padding(attrs), "dilations": (1,) * (len(self.block) + 2)}

    def shape(self, image: Sequence[int]) -> list[int]:
        """The shape of `image` apart."""
        found = [image[0] * int(np.prod(self.block)), *image[1:]]
        for d, (b, (before, after)) in enumerate(
            zip(self.block, self._paddings, strict=True), start=1
        ):
            found[d] = (image[d] + before + after) // b
        return found

    @property
    def _paddings(self) -> list[windows.Range]:
        return [(lo, hi + n) for (lo, hi), n in zip(self.borders, self.extra, strict=True)]

    def _move(
        self, emit: Emitter, op: str, tensor: str, sizes: Sequence[windows.Range], part: str
    ) -> str:
        block = emit.const(np.asarray(self.block, np.int32), f"{part}/block")
        margins = emit.const(np.asarray(sizes, np.int32), f"{part}/margins")
        kind = "paddings" if op == "SpaceToBatchND" else "crops"
        attrs = {"T": self.dtype, "Tblock_shape": "int32", f"T{kind}": "int32"}
        return emit.add(op, [tensor, block, margins], attrs, part)[0]


def apart(
    piece: Piece,
    view: Sequence[windows.Window],
    rows: Sequence[windows.Range],
    count: Sequence[windows.Range],
) -> Apart | None:
    """How to run windows `count` over image rows `rows`; None where the op's kernel can itself."""
    form = piece.attributes["data_format"]
    if all(w.dilation == 1 for w in view) or not form.endswith("C"):
        return None
    if piece.node.op == "Conv2D" or any(w.stride > 1 for w in view):
        return None
    margins = windows.borders(view, rows, count)
    extra = []
    for w, (lo, hi), (before, after) in zip(view, rows, margins, strict=True):
        extra.append(-(before + hi - lo + after) % w.dilation)
    block = tuple(w.dilation for w in view)
    return Apart(block, margins, tuple(extra), piece.node.outputs[0].dtype)
