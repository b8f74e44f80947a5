"""Windows that slide over an image: which rows they cover, in coordinates and in pieces.

A `Window` is one spatial dimension of a convolution or a pooling. The whole op's padding does not
fit a piece: what its windows miss at each border becomes explicit padding of the piece.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.ops import parts
from tofu_tf.ops.registry import Emitter, Piece
from tofu_tf.tdl.expressions import Named, Operand, Value
from tofu_tf.tdl.regions import Region

Range = tuple[int, int]
TAPS = ("kz", "ky", "kx")  # the axes of a window; no body can cut them


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension: `size` image rows, `count` windows, `before` rows of padding."""

    size: int
    count: int
    kernel: int
    stride: int
    dilation: int
    before: int

    def row(self, window: Any, tap: Any) -> Any:
        """The image row that tap `tap` of a window lies on; outside the image is padding."""
        return window * self.stride + tap * self.dilation - self.before

    def window(self, row: Any, tap: Any) -> Any:
        """The window whose tap `tap` lies on image row `row`, where there is one."""
        return (row + self.before - tap * self.dilation) / self.stride

    @property
    def reach(self) -> int:
        """Image rows from a window's first to its last."""
        return (self.kernel - 1) * self.dilation + 1

    def span(self, windows: Range) -> Range:
        """Image rows from the first window's first to the last window's last, not clipped."""
        first, last = windows
        return self.row(first, 0), self.row(last - 1, 0) + self.reach

    def inside(self, windows: Range) -> Range:
        """The span's rows that the image has."""
        first, last = self.span(windows)
        return max(first, 0), min(last, self.size)

    def real_taps(self, windows: Range) -> list[int]:
        """How many taps of each window lie on the image."""
        return [
            sum(0 <= self.row(o, t) < self.size for t in range(self.kernel))
            for o in range(*windows)
        ]


def spatial_dims(data_format: str) -> tuple[int, ...]:
    """Positions of the spatial dimensions: (1, 2) in NHWC, (2, 3, 4) in NCDHW."""
    return tuple(i for i, letter in enumerate(data_format) if letter not in "NC")


def windows(
    image: Sequence[int],
    kernel: Sequence[int],
    count: Sequence[int],
    strides: Sequence[int],
    padding: str,
    data_format: str,
    explicit_paddings: Sequence[int] = (),
    dilations: Sequence[int] = (),
) -> tuple[Window, ...]:
    """One Window per spatial dimension.

    `kernel` has the spatial dimensions only, everything else is in data format order.
    """
    found = []
    for k, d in zip(kernel, spatial_dims(data_format), strict=True):
        dilation = dilations[d] if dilations else 1
        before = 0
        if padding == "EXPLICIT":
            before = explicit_paddings[2 * d]
        elif padding == "SAME":
            before = max((count[d] - 1) * strides[d] + (k - 1) * dilation + 1 - image[d], 0) // 2
        found.append(Window(image[d], count[d], k, strides[d], dilation, before))
    return tuple(found)


def pixels(tensor: Operand, data_format: str) -> Callable[..., Value]:
    """``at(b, *space, c)``: element access in an image tensor of either format."""
    if data_format.endswith("C"):
        return lambda *i: tensor[i]
    return lambda b, *rest: tensor[(b, rest[-1], *rest[:-1])]


def arranged(element: Callable[..., Any], data_format: str) -> Callable[..., Any]:
    """The lambda of an image output, given as ``(b, *space, c)``, in the order of `data_format`."""
    if data_format.endswith("C"):
        return element

    def channels_first(b: Any, c: Any, *space: Any) -> Any:
        return element(b, *space, c)

    names = list(inspect.signature(element).parameters.values())
    channels_first.__signature__ = inspect.Signature([names[0], names[-1], *names[1:-1]])  # type: ignore[attr-defined]
    return channels_first


def over_image(element: Callable[..., Any], data_format: str) -> Callable[..., Any]:
    """The lambda of an image output, given as ``(b, space, c)``; its spatial axes are (z,) y, x."""
    if len(data_format) == 4:
        return arranged(lambda b, y, x, c: element(b, (y, x), c), data_format)
    return arranged(lambda b, z, y, x, c: element(b, (z, y, x), c), data_format)


def ranges(region: Region, data_format: str) -> tuple[Range, ...]:
    """A region's ranges along the spatial dimensions."""
    return tuple(region.bounds[d] for d in spatial_dims(data_format))


def is_whole(view: Sequence[Window], image: Sequence[Range], count: Sequence[Range]) -> bool:
    """Whether these are all rows of the image and all windows."""
    return all(
        i == (0, w.size) and c == (0, w.count) for w, i, c in zip(view, image, count, strict=True)
    )


def borders(
    view: Sequence[Window], image: Sequence[Range], count: Sequence[Range]
) -> tuple[Range, ...]:
    """Rows of padding that windows `count` have before and after image rows `image`."""
    found = []
    for w, (lo, hi), c in zip(view, image, count, strict=True):
        first, last = w.span(c)
        found.append((lo - first, last - hi))
    return tuple(found)


def fitted(
    attrs: Mapping[str, Any],
    view: Sequence[Window],
    image: Sequence[Range],
    count: Sequence[Range],
    data_format: str,
) -> dict[str, Any]:
    """`attrs` with the padding that makes windows `count` of image rows `image`."""
    if is_whole(view, image, count):
        return dict(attrs)
    margins = borders(view, image, count)
    paddings = [0] * (2 * len(data_format))
    for d, (before, after) in zip(spatial_dims(data_format), margins, strict=True):
        paddings[2 * d], paddings[2 * d + 1] = before, after
    if not any(paddings):
        return {**attrs, "padding": "VALID", "explicit_paddings": ()}
    return {**attrs, "padding": "EXPLICIT", "explicit_paddings": tuple(paddings)}


def placed(data_format: str, rank: int, per_dim: Sequence[Range]) -> list[Range]:
    """Ranges of every dimension: those given along the spatial ones, (0, 0) elsewhere."""
    found = [(0, 0)] * rank
    for d, pair in zip(spatial_dims(data_format), per_dim, strict=True):
        found[d] = pair
    return found


def zeros(emit: Emitter, piece: Piece, output: int = 0) -> list[str]:
    """The piece's output `output` as zeros: nothing that it reads is there."""
    return parts.filled(emit, piece.writes[output].shape, 0, piece.node.outputs[output].dtype)


def over_taps(
    reduction: Callable[..., Value], view: Sequence[Window], body: Callable[[tuple[Any, ...]], Any]
) -> Value:
    """`reduction` of ``body(taps)`` over a window's taps; their axes are (kz,) ky, kx."""
    names = TAPS[-len(view) :]
    extents = {name: w.kernel for name, w in zip(names, view, strict=True)}
    return reduction(Named(names, lambda *taps: body(taps)), **extents)


def padded(
    emit: Emitter,
    tensor: str,
    dtype: str,
    margins: Sequence[Range],
    part: str,
    value: float = 0.0,
) -> str:
    """`tensor` with `margins` of `value` around it; itself when there are none."""
    if not any(n for pair in margins for n in pair):
        return tensor
    sizes = emit.const(np.asarray(margins, np.int32), f"{part}/sizes")
    attrs = {"T": dtype, "Tpaddings": "int32"}
    if value == 0:
        return emit.add("Pad", [tensor, sizes], attrs, part)[0]
    filling = parts.scalar(emit, value, dtype, f"{part}/value")
    return emit.add("PadV2", [tensor, sizes, filling], attrs, part)[0]


def without_padding(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """`attrs` of the same op on an image that is padded already."""
    none = {"explicit_paddings": ()} if "explicit_paddings" in attrs else {}
    return {**attrs, "padding": "VALID", **none}


def bordered(
    emit: Emitter,
    piece: Piece,
    image: str,
    view: Sequence[Window],
    rows: Sequence[Range],
    count: Sequence[Range],
    value: float,
) -> tuple[str, dict[str, Any]]:
    """The image with the padding that its windows need, and attributes to run the op on it."""
    if is_whole(view, rows, count):
        return image, dict(piece.node.attrs)
    margins = borders(view, rows, count)
    form = piece.attributes["data_format"]
    around = placed(form, len(form), margins)
    dtype = piece.node.outputs[0].dtype
    tensor = padded(emit, image, dtype, around, "pad", value)
    return tensor, without_padding(piece.node.attrs)


def rows_of(
    emit: Emitter,
    tensor: str,
    dtype: str,
    held: Region,
    rows: Sequence[Range],
    data_format: str,
    part: str,
) -> str:
    """Rows `rows` of a tensor that holds region `held`; itself when those are all."""
    if ranges(held, data_format) == tuple(rows):
        return tensor
    bounds = [(0, n) for n in held.shape]
    for d, (lo, hi) in zip(spatial_dims(data_format), rows, strict=True):
        first = held.bounds[d][0]
        bounds[d] = (lo - first, hi - first)
    return parts.sliced(emit, tensor, bounds, dtype, part)[0]


def settled(
    emit: Emitter, piece: Piece, tensor: str, held: Sequence[Range], data_format: str
) -> list[str]:
    """The piece's output 0 from a tensor of its rows `held`: cut off, or filled up with zeros."""
    wanted, dtype = piece.writes[0], piece.node.outputs[0].dtype
    kept = []
    bounds = list(wanted.bounds)
    for d, (first, last) in zip(spatial_dims(data_format), held, strict=True):
        lo, hi = bounds[d]
        kept.append((max(lo, first), min(hi, last)))
        bounds[d] = (first, last)
    if any(lo >= hi for lo, hi in kept):
        return zeros(emit, piece)
    rows = rows_of(emit, tensor, dtype, Region(tuple(bounds)), kept, data_format, "rows")
    around = [
        (lo - a, b - hi) for (a, b), (lo, hi) in zip(ranges(wanted, data_format), kept, strict=True)
    ]
    margins = placed(data_format, len(bounds), around)
    return [padded(emit, rows, dtype, margins, "border")]
