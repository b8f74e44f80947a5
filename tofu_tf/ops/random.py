"""Random ops that take their generator's key and counter: a piece draws just its own part.

Philox makes a group of elements from one counter: element n of a tensor comes from the counter plus
``n // group`` times `_Law.steps`. So a piece that starts at element n moves the counter on, and
draws what one device draws there, whatever the cut.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tofu_tf.graph.attributes import INDEPENDENT
from tofu_tf.ops.parts import chosen, reshaped, sliced
from tofu_tf.ops.registry import Emitter, Piece, Sample, op, same_op
from tofu_tf.tdl.expressions import Opaque, apply

_MIX = 0x9E3779B97F4A7C15  # odd, so that different boxes never get the same key
_WORD = 1 << 64
_LOWEST = -(1 << 63)


@dataclasses.dataclass(frozen=True)
class _Law:
    """How elements come from counters: `group` elements from `steps` of them."""

    group: int
    steps: int


def _law(op_name: str, itemsize: int) -> _Law:
    """A call of Philox yields 128 bits: two wide elements, or four of up to 32 bits.

    A truncated normal draws again and again: 256 counters are set aside for four elements.
    """
    group = 2 if itemsize == 8 else 4
    return _Law(group, 64 * group if "Truncated" in op_name else 1)


def _signed(word: int) -> int:
    word %= _WORD
    return word - _WORD if word >= 1 << 63 else word


def _moved(emit: Emitter, counter: str, by: int) -> str:
    """The 128-bit `counter`, low word first, advanced by less than 2 ** 63."""
    pair = {"T": "int64"}
    before = emit.add("Bitcast", [counter], {"T": "uint64", "type": "int64"}, "counter")[0]
    step = emit.const(np.asarray([by, 0], np.int64), "step")
    after = emit.add("AddV2", [before, step], pair, "stepped")[0]
    # Unsigned words are compared as signed ones with the highest bit turned.
    lowest = emit.const(np.asarray(_LOWEST, np.int64), "lowest")
    first = emit.add("BitwiseXor", [before, lowest], pair, "first")[0]
    second = emit.add("BitwiseXor", [after, lowest], pair, "second")[0]
    over = emit.add("Less", [second, first], pair, "over")[0]
    carries = emit.add("Cast", [over], {"SrcT": "bool", "DstT": "int64"}, "carries")[0]
    carry = sliced(emit, carries, [(0, 1)], "int64", "carry")[0]
    none, axis = (
        emit.const(np.zeros(1, np.int64), "none"),
        emit.const(np.asarray(0, np.int32), "axis"),
    )
    attrs = {"N": 2, "T": "int64", "Tidx": "int32"}
    up = emit.add("ConcatV2", [none, carry, axis], attrs, "up")[0]
    total = emit.add("AddV2", [after, up], pair, "carried")[0]
    return emit.add("Bitcast", [total], {"T": "int64", "type": "uint64"}, "moved")[0]


def _keyed(emit: Emitter, key: str, first: int) -> str:
    """A key of its own for the box whose first element is number `first`; element 0 keeps `key`."""
    if first == 0:
        return key
    attrs = {"T": "uint64", "type": "int64"}
    word = emit.add("Bitcast", [key], attrs, "word")[0]
    mask = emit.const(np.asarray(_signed(first * _MIX), np.int64), "mask")
    mixed = emit.add("BitwiseXor", [word, mask], {"T": "int64"}, "mixed")[0]
    return emit.add("Bitcast", [mixed], {"T": "int64", "type": "uint64"}, "key")[0]


def _draw(
    emit: Emitter, piece: Piece, shape: tuple[int, ...], key: str, counter: str, part: str
) -> list[str]:
    """A tensor of this shape from this key and counter, by the piece's op."""
    attrs = chosen(piece, *(a for a in ("dtype", "T", "Tshape") if a in piece.node.attrs))
    if "Tshape" in attrs:
        attrs["Tshape"] = "int64"
    dims = emit.const(np.asarray(shape, np.int64), f"{part}dims")
    alg = emit.const(piece.constants[3], f"{part}alg")
    return emit.add(piece.node.op, [dims, key, counter, alg, *piece.inputs[4:]], attrs, part)


def _body(emit: Emitter, piece: Piece) -> list[str]:
    """The whole op's elements in the piece's box, or, where the node says so, others in their
    place.
    """
    bounds, whole = piece.writes[0].bounds, piece.node.outputs[0].shape
    if all(b == (0, n) for b, n in zip(bounds, whole, strict=True)):
        return _draw(emit, piece, whole, piece.inputs[1], piece.inputs[2], "")
    strides = [math.prod(whole[d + 1 :]) for d in range(len(whole))]
    box = tuple(hi - lo for lo, hi in bounds)
    if piece.attributes.get(INDEPENDENT):
        first = sum(lo * stride for (lo, _), stride in zip(bounds, strides, strict=True))
        key = _keyed(emit, piece.inputs[1], first)
        return _draw(emit, piece, box, key, piece.inputs[2], "")
    return _exact(emit, piece, box, strides)


def _exact(emit: Emitter, piece: Piece, box: tuple[int, ...], strides: list[int]) -> list[str]:
    """The box cut from the shortest run of whole rows around it, in whole groups of elements."""
    bounds, whole = piece.writes[0].bounds, piece.node.outputs[0].shape
    dtype = piece.node.outputs[0].dtype
    # dimensions up to `last` are drawn as the box has them, those behind it as a whole
    last = next((d for d, n in enumerate(box) if n != 1), len(box) - 1)
    rows = (*box[: last + 1], *whole[last + 1 :])
    first = sum(bounds[d][0] * strides[d] for d in range(last + 1))
    law = _law(piece.node.op, piece.node.outputs[0].itemsize)
    groups, spare = divmod(first, law.group)
    counter = piece.inputs[2]
    if groups:
        counter = _moved(emit, counter, groups * law.steps)
    cut = rows != box
    if spare == 0:
        made = _draw(emit, piece, rows, piece.inputs[1], counter, "rows" if cut else "")
    else:
        run = math.prod(rows)
        drawn = _draw(emit, piece, (spare + run,), piece.inputs[1], counter, "run")
        kept = sliced(emit, drawn[0], [(spare, spare + run)], dtype, "kept")
        made = reshaped(emit, kept[0], rows, dtype, "rows" if cut else "")
    if not cut:
        return made
    inside = [(0, n) for n in box[: last + 1]]
    return sliced(emit, made[0], [*inside, *bounds[last + 1 :]], dtype)


_KEY = np.asarray([0x123456789ABCDEF0], np.uint64)
_COUNTER = np.asarray([2**64 - 3, 2**64 - 1], np.uint64)  # soon carries into both words
_PHILOX, _AUTOMATIC = np.asarray(1, np.int32), np.asarray(3, np.int32)  # the same on CPU and GPU
_FLOPS = lambda inputs, outputs, attributes: 10 * outputs[0].size  # noqa: E731  of a Philox call


def _sample(
    shape: tuple[int, ...],
    dtype: str,
    limits: tuple[int, ...] = (),
    alg: np.ndarray = _PHILOX,
) -> Sample:
    size, bounds = np.asarray(shape, np.int32), (np.asarray(n, dtype) for n in limits)
    axes = tuple(f"i{d}" for d, n in enumerate(shape) if n > 1)
    attrs = {} if limits else {"dtype": dtype}
    return Sample((size, _KEY, _COUNTER, alg, *bounds), {"": axes}, attrs)


def _samples(*dtypes: str, limits: tuple[int, ...] = ()) -> tuple[Sample, ...]:
    """Every dtype, and with the last one shapes whose parts begin inside a group of elements."""
    every = (_sample((6, 5), dtype, limits) for dtype in dtypes)
    shapes = ((4, 3, 7), (1, 9), ())
    return (*every, *(_sample(shape, dtypes[-1], limits, _AUTOMATIC) for shape in shapes))


def _drawn(shape: np.ndarray, key: Any, counter: Any, alg: np.ndarray, *bounds: Any) -> Any:
    """An element from the key, the counter and its own number."""
    return lambda *i: apply(key[0], counter[0], counter[1], *(b[()] for b in bounds))


_FLOATS = ("float16", "bfloat16", "float64", "float32")

op(
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormalV2",
    body=_body,
    constants=(0, 3),
    flops=_FLOPS,
    samples=_samples(*_FLOATS),
)(_drawn)

op(
    "StatelessRandomUniformIntV2",
    body=_body,
    constants=(0, 3),
    flops=_FLOPS,
    samples=_samples("int64", "int32", limits=(-7, 1000)),
)(_drawn)

op(
    "StatelessRandomUniformFullIntV2",
    body=_body,
    constants=(0, 3),
    flops=_FLOPS,
    samples=_samples("int64", "uint32", "uint64", "int32"),
)(_drawn)


def _every(x: Any) -> Any:
    return x[tuple(slice(None) for _ in x.shape)]


@op(
    "RngReadAndSkip",
    body=same_op,
    flops=lambda inputs, outputs, attributes: 0,
    uncuttable="a generator's state is one counter and one key",
    samples=(
        Sample(
            (np.asarray([5, -1, 77], np.int64), _PHILOX, np.asarray(30, np.uint64)),
            {"": ()},
        ),
    ),
)
def read_and_skip(state: Any, alg: Any, delta: Any) -> Any:
    """The state as it was, and its next version: the counter moved on by 256 for each element."""

    def word(i: Any) -> Any:
        return Opaque(_every(state), alg[()], delta[()])[i]

    return word, word


@op(
    "StatelessRandomGetKeyCounter",
    flops=lambda inputs, outputs, attributes: 0,
    uncuttable="a key and a counter are scrambled from the whole seed",
    samples=(
        Sample((np.asarray([3, 7], np.int32),), {"": ()}),
        Sample((np.asarray([3, -7], np.int64),), {"": ()}),
    ),
)
def key_and_counter(seed: Any) -> Any:
    return (lambda k: Opaque(_every(seed))[k]), (lambda c: Opaque(_every(seed))[c])
