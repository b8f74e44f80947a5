"""Contractions: MatMul, batched MatMul, Einsum, and bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tofu_tf.ops.registry import Sample, op
from tofu_tf.tdl.expressions import Named, Sum, apply


def _matmul_flops(
    inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
) -> int:
    a = inputs[0].shape
    inner = a[-2] if attributes.get("transpose_a") or attributes.get("adj_x") else a[-1]
    return int(2 * outputs[0].size * inner)


_A, _B = ((4, 5), "float64"), ((5, 3), "float64")
_IJK = {"": ("i", "j", "k")}


@op(
    "MatMul",
    flops=_matmul_flops,
    samples=(
        Sample((_A, _B), _IJK),
        Sample((((5, 4), "float64"), _B), _IJK, {"transpose_a": True}),
        Sample((_A, ((3, 5), "float64")), _IJK, {"transpose_b": True}),
        Sample(
            (((5, 4), "float32"), ((3, 5), "float32")),
            _IJK,
            {"transpose_a": True, "transpose_b": True},
        ),
        Sample((((4, 1), "float64"), ((1, 3), "float64")), {"": ("i", "j")}),
    ),
)
def matmul(a: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    """``Sum over k of a[i, k] * b[k, j]``."""
    return lambda i, j: Sum(
        lambda k: (a[k, i] if transpose_a else a[i, k]) * (b[j, k] if transpose_b else b[k, j])
    )


def _batched(a: Any, b: Any, adj_x: bool, adj_y: bool) -> Any:
    def element(*i: Any) -> Any:
        *batch, m, n = i

        def read(x: Any, row: Any, column: Any) -> Any:
            own = batch[len(batch) - (x.rank - 2) :]
            where = [0 if size == 1 else c for size, c in zip(x.shape[:-2], own, strict=True)]
            return x[(*where, row, column)]

        return Sum(
            lambda k: (
                (read(a, k, m) if adj_x else read(a, m, k))
                * (read(b, n, k) if adj_y else read(b, k, n))
            ),
            k=a.shape[-2 if adj_x else -1],
        )

    return element


_BATCHED = (
    Sample((((2, 3, 4), "float64"), ((2, 4, 5), "float64")), {"": ("i0", "i1", "i2", "k")}),
    Sample(
        (((2, 4, 3), "float64"), ((2, 5, 4), "float64")),
        {"": ("i0", "i1", "i2", "k")},
        {"adj_x": True, "adj_y": True},
    ),
)
_BATCH_BROADCAST = (
    *_BATCHED,
    Sample(
        (((2, 1, 3, 4), "float32"), ((2, 4, 2), "float32")), {"": ("i0", "i1", "i2", "i3", "k")}
    ),
)


op(
    "BatchMatMul",
    "BatchMatMulV2",
    flops=_matmul_flops,
    samples={"BatchMatMul": _BATCHED, "BatchMatMulV2": _BATCH_BROADCAST},
)(lambda a, b, *, adj_x, adj_y: _batched(a, b, adj_x, adj_y))


op(
    "BatchMatMulV3",
    flops=_matmul_flops,
    samples=tuple(
        Sample(s.inputs, s.axes, {**s.attrs, "Tout": s.inputs[0][1]}) for s in _BATCH_BROADCAST
    ),
)(lambda a, b, *, adj_x, adj_y: _batched(a, b, adj_x, adj_y))


def equation_labels(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Labels of every operand and of the result; an ellipsis becomes labels ``.0``, ``.1`` ..."""
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    widths = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    widest = max((w for t, w in zip(terms, widths, strict=True) if "..." in t), default=0)

    def spread(term: str, width: int) -> list[str]:
        head, dots, tail = term.partition("...")
        middle = [f".{n}" for n in range(widest - width, widest)] if dots else []
        return [*head, *middle, *tail]

    return [spread(t, w) for t, w in zip(terms, widths, strict=True)], spread(right, widest)


def _einsum_flops(
    inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
) -> int:
    operands, _ = equation_labels(attributes["equation"], [len(x.shape) for x in inputs])
    sizes: dict[str, int] = {}
    for labels, x in zip(operands, inputs, strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            sizes[label] = max(n, sizes.get(label, 1))
    return int(len(inputs) * np.prod(list(sizes.values()), dtype=np.int64))


def _einsum_sample(
    equation: str, shapes: Sequence[tuple[int, ...]], axes: tuple[str, ...]
) -> Sample:
    return Sample(tuple((s, "float64") for s in shapes), {"": axes}, {"equation": equation})


@op(
    "Einsum",
    flops=_einsum_flops,
    samples=(
        _einsum_sample("abc,cde->abde", ((2, 3, 4), (4, 2, 5)), tuple("abdec")),
        _einsum_sample("aecd,abcd->acbe", ((2, 3, 2, 4), (2, 5, 2, 4)), tuple("acbed")),
        _einsum_sample("btd,bte->ebtd", ((2, 3, 4), (2, 3, 5)), tuple("ebtd")),
        _einsum_sample("abc->ca", ((2, 3, 4),), tuple("cab")),
        _einsum_sample("ii->i", ((5, 5),), ("i",)),
        _einsum_sample("ab,ab->", ((3, 4), (3, 4)), tuple("ab")),
        _einsum_sample(
            "...ab,...bc->...ac",
            ((2, 1, 3, 4), (3, 4, 2)),
            ("dots0", "dots1", "a", "c", "b"),
        ),
    ),
)
def einsum(*operands: Any, equation: str) -> Any:
    """The sum over every label that the result has not."""
    inputs, result = equation_labels(equation, [x.rank for x in operands])
    sizes: dict[str, int] = {}
    for labels, x in zip(inputs, operands, strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            sizes[label] = max(n, sizes.get(label, 1))
    summed = [label for label in sizes if label not in result]

    def axis(label: str) -> str:
        return label.replace(".", "dots")

    def element(*i: Any) -> Any:
        def product(*r: Any) -> Any:
            at = dict(zip(result, i, strict=True)) | dict(zip(summed, r, strict=True))
            return apply(
                *(
                    x[tuple(0 if n == 1 else at[c] for c, n in zip(labels, x.shape, strict=True))]
                    for labels, x in zip(inputs, operands, strict=True)
                )
            )

        names = tuple(axis(c) for c in summed)
        return Sum(Named(names, product), **{axis(c): sizes[c] for c in summed})

    return Named(tuple(axis(c) for c in result), element)


def _channel(rank: int, data_format: str) -> int:
    return 1 if data_format == "NCHW" else rank - 1


@op(
    "BiasAdd",
    flops=lambda inputs, outputs, attributes: outputs[0].size,
    samples=(
        Sample((((4, 5), "float64"), ((5,), "float64")), {"": ("i0", "i1")}),
        Sample((((2, 3, 2, 4), "float64"), ((4,), "float64")), {"": ("i0", "i1", "i2", "i3")}),
        Sample(
            (((2, 4, 3, 2), "float32"), ((4,), "float32")),
            {"": ("i0", "i1", "i2", "i3")},
            {"data_format": "NCHW"},
        ),
    ),
)
def bias_add(x: Any, bias: Any, *, data_format: str) -> Any:
    """``x[i] + bias[channel of i]``."""
    return lambda *i: apply(x[i], bias[i[_channel(x.rank, data_format)]])


@op(
    "BiasAddV1",
    samples=(Sample((((4, 5), "float64"), ((5,), "float64")), {"": ("i0", "i1")}),),
)
def bias_add_v1(x: Any, bias: Any) -> Any:
    return lambda *i: apply(x[i], bias[i[-1]])


@op(
    "BiasAddGrad",
    flops=lambda inputs, outputs, attributes: inputs[0].size,
    samples=(
        Sample((((4, 5), "float64"),), {"": ("c", "r0")}),
        Sample((((2, 3, 2, 4), "float64"),), {"": ("c", "r0", "r1", "r2")}),
        Sample(
            (((2, 4, 3, 2), "float32"),), {"": ("c", "r0", "r1", "r2")}, {"data_format": "NCHW"}
        ),
    ),
)
def bias_add_grad(g: Any, *, data_format: str) -> Any:
    """The sum over all dimensions but the channel."""
    at = _channel(g.rank, data_format)
    others = tuple(n for d, n in enumerate(g.shape) if d != at)
    return lambda c: Sum(lambda *r: g[(*r[:at], c, *r[at:])], r=others)
