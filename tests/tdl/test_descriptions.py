"""Descriptions as tables: lambda, shapes -> text, cuttable axes, regions; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tofu_tf.errors import DescriptionError
from tofu_tf.tdl.descriptions import Description, describe
from tofu_tf.tdl.expressions import Max, Named, Opaque, Sum, apply
from tofu_tf.tdl.strategies import cuttable, work_of

F = "float32"


def described(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], *out: Any
) -> Description:
    return describe(function, [(s, F) for s in shapes], out)


CASES = [
    (
        "matmul",
        lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j]),
        [(4, 5), (5, 6)],
        (4, 6),
        "[i, k], [k, j] -> [i, j] by Sum over k",
        ("i", "j", "k"),
    ),
    (
        "convolution in one dimension",
        lambda x, f: (
            lambda n, o, y: Sum(lambda c, k: x[n, c, 2 * y + k - 1] * f[k, c, o], k=3, c=2)
        ),
        [(4, 2, 8), (3, 2, 5)],
        (4, 5, 4),
        "[n, c, k + 2*y - 1], [k, c, o] -> [n, o, y] by Sum over c,k",
        ("n", "o", "y", "c", "k"),
    ),
    (
        "scaled sum of a sum",
        lambda x: lambda i: Sum(lambda j: Sum(lambda k: x[i, j, k])) / 12.0,
        [(2, 3, 4)],
        (2,),
        "[i, j, k] -> [i] by Sum over j,k",
        ("i", "j", "k"),
    ),
    (
        "a function of a sum: its axis stays whole",
        lambda x: lambda i: apply(Sum(lambda j: x[i, j])),
        [(4, 5)],
        (4,),
        "[i, j] -> [i]",
        ("i",),
    ),
    (
        "a maximum of sums: only the maximum is cut",
        lambda x: lambda i: Max(lambda j: Sum(lambda k: x[i, j, k])),
        [(2, 3, 4)],
        (2,),
        "[i, j, k] -> [i] by Max over j",
        ("i", "j"),
    ),
    (
        "one over a sum is no sum",
        lambda x: lambda i: 1.0 / Sum(lambda j: x[i, j]),
        [(4, 5)],
        (4,),
        "[i, j] -> [i]",
        ("i",),
    ),
    (
        "a bias is added once, not by every part",
        lambda x, b: lambda i: Sum(lambda j: x[i, j]) + b[i],
        [(4, 5), (4,)],
        (4,),
        "[i, j], [i] -> [i]",
        ("i",),
    ),
    (
        "variable rank",
        lambda x: lambda *i: x[i],
        [(2, 1, 4)],
        (2, 1, 4),
        "[i0, i1, i2] -> [i0, i1, i2]",
        ("i0", "i2"),
    ),
    (
        "reduction of variable rank",
        lambda x: lambda c: Sum(lambda *r: x[(*r, c)], r=(2, 3)),
        [(2, 3, 4)],
        (4,),
        "[r0, r1, c] -> [c] by Sum over r0,r1",
        ("c", "r0", "r1"),
    ),
    (
        "broadcasting",
        lambda a, b: lambda *i: apply(a.broadcast(*i), b.broadcast(*i)),
        [(4, 1), (5,)],
        (4, 5),
        "[i0, 0], [i1] -> [i0, i1]",
        ("i0", "i1"),
    ),
    (
        "an opaque row",
        lambda x: lambda i, j: Opaque(x[i, :])[j],
        [(4, 5)],
        (4, 5),
        "[i, :] -> [i, j]",
        ("i",),
    ),
    (
        "named axes",
        lambda x: Named(("a", "b"), lambda p, q: x[q, p]),
        [(4, 5)],
        (5, 4),
        "[b, a] -> [a, b]",
        ("a", "b"),
    ),
    (
        "extent by keyword",
        lambda x: lambda i: Sum(lambda k: x[i + k], k=3),
        [(6,)],
        (4,),
        "[i + k] -> [i] by Sum over k",
        ("i", "k"),
    ),
    (
        "merged axes",
        lambda x: lambda m, j: x[m // 3, m % 3, j],
        [(2, 3, 4)],
        (6, 4),
        "[m.0, m.1, j] -> [3*m.0 + m.1, j]",
        ("m.0", "m.1", "j"),
    ),
]


@pytest.mark.parametrize(
    "function, shapes, out, text, axes", [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_described(
    function: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    out: tuple[int, ...],
    text: str,
    axes: tuple[str, ...],
) -> None:
    found = described(function, shapes, out)
    assert str(found) == text
    assert set(cuttable(found)) == set(axes)


def test_several_outputs_share_axes_by_name() -> None:
    found = described(
        lambda x: (lambda i, j: x[i, j], lambda i: Sum(lambda j: x[i, j])), [(4, 6)], (4, 6), (4,)
    )
    assert set(cuttable(found)) == {"i", "j"}
    work = work_of(found, ("j",), (2,))
    assert [str(r) for r in work.writes[0].tuple()] == ["[0:4, 0:3]", "[0:4, 3:6]"]
    assert [str(r) for r in work.writes[1].tuple()] == ["[0:4]", "[0:4]"]
    assert [p.tolist() for p in work.partials] == [[0, 0], [0, 1]]
    assert work.reducers == (None, "Sum")


def test_an_axis_that_one_output_cannot_be_cut_along_is_whole() -> None:
    found = described(
        lambda x: (lambda i, j: x[i, j], lambda i: apply(Sum(lambda j: x[i, j]))),
        [(4, 6)],
        (4, 6),
        (4,),
    )
    assert cuttable(found) == ("i",)


def test_attributes_and_constants_are_plain_arguments() -> None:
    def scaled(x: Any, steps: Any, *, offset: int) -> Any:
        return lambda i: x[i * steps[0] + offset]

    found = describe(scaled, [((9,), F), [2]], [(4,)], {"offset": 1})
    assert str(found) == "[2*i + 1], - -> [i]"


def test_halo_of_a_cut_window() -> None:
    found = described(lambda x: lambda i: Sum(lambda k: x[i + k - 1], k=3), [(8,)], (8,))
    work = work_of(found, ("i",), (2,))
    assert [str(r) for r in work.reads[0].tuple()] == ["[0:5]", "[3:8]"]


REFUSED = [
    (lambda x: lambda i, j: x[i * j, 0], [(4, 4)], (2, 2), "not affine", "x[i * j, 0]"),
    (lambda x: lambda i: x[x[i]], [(4,)], (4,), "not affine", "x[x[i]]"),
    (lambda x: lambda i: x[i // 3], [(3,)], (8,), "not affine", "x[i // 3]"),
    (lambda x: lambda i: i * i, [(4,)], (4,), "not affine", "i * i"),
    (lambda x: lambda i: x[i], [(4, 4)], (4,), "1 coordinates", "x[i]"),
    (lambda x: lambda i, j: x[i], [(4,)], (4,), "2 coordinates for an output", "x[i]"),
    (lambda x: lambda i: x[i:], [(4,)], (4,), "only ':' is known", "x[i:]"),
    (lambda x: lambda i: Sum(lambda k: x[2 * i + k]), [(9,)], (4,), "extent of axis k", "k=3"),
    (lambda x: lambda i: Sum(lambda *r: x[r]), [(9,)], (4,), "number of axes *r", "r=("),
    (lambda x: (lambda i: x[i], lambda i: x[i]), [(4,)], (4,), "2 lambdas for 1 outputs", ""),
]


@pytest.mark.parametrize("function, shapes, out, seen, text", REFUSED)
def test_refused_with_the_lambda_s_text(
    function: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    out: tuple[int, ...],
    seen: str,
    text: str,
) -> None:
    with pytest.raises(DescriptionError) as error:
        described(function, shapes, out)
    assert seen in str(error.value)
    assert text in str(error.value)


def test_what_is_refused_is_allowed_inside_opaque() -> None:
    found = described(lambda x: lambda i, j: Opaque(x[i, :])[j * 2 // 3], [(4, 6)], (4, 6))
    assert cuttable(found) == ("i",)
