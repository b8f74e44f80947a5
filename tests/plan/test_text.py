"""A plan prints as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tofu_tf.graph.ir import Ref, TensorSpec, Variable
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.text import (
    bytes_text,
    certificate_lines,
    plan_sections,
    plan_text,
    size_text,
    summary_lines,
)

COPIED = Layout((None, None))
HOME = Layout((None, None), home=True)
LONG = "a/very/long/scope/of/a/model/that/somebody/wrote/once/upon/a/time/dense/kernel"


def variable(name: str, shape: tuple[int, ...], dtype: str = "float32", trainable: bool = False):
    return Variable(name, TensorSpec(shape, dtype), name, trainable=trainable)


VARIABLES = (
    variable("dense/kernel", (512, 130), trainable=True),
    variable("dense/bias", (130,), trainable=True),
    variable(LONG, (17, 10), trainable=True),
    variable("Adam/m/dense/kernel", (512, 130)),
    variable("iteration", (), "int64"),
)
LAYOUTS = {
    Ref("dense/kernel"): Layout((0, 1)),
    Ref("dense/bias"): COPIED,
    Ref(LONG): Layout((None, 0)),
    Ref("Adam/m/dense/kernel"): Layout((0, 0)),
    Ref("iteration"): HOME,
    Ref("x"): Layout((0, None)),
    Ref("dense/MatMul"): Layout((0, 1)),
    Ref("switch", 1): COPIED,
}
PLAN = Plan(
    imagined(4),
    LAYOUTS,
    {},
    "",
    predicted_bytes=1_268_736,
    reasons={
        Ref("dense/bias"): "520 bytes, 1024 or fewer are copied",
        Ref("iteration"): "happens once",
        Ref(LONG): "asked for",
        Ref("switch", 1): "bool is not cut",
    },
    specs={v.ref: v.spec for v in VARIABLES}
    | {
        Ref("x"): TensorSpec((63, 512), "float32"),
        Ref("dense/MatMul"): TensorSpec((63, 130), "bfloat16"),
        Ref("switch", 1): TensorSpec((), "bool"),
    },
    variables={v.name: v for v in VARIABLES},
)


def test_the_table(golden: Callable[..., None]) -> None:
    golden(str(PLAN), "plan")


@pytest.mark.parametrize(
    "bound, predicted, line",
    [
        (None, 1000, ()),
        (1000, 1000, ("certificate: optimal",)),
        (
            1000,
            900,
            ("certificate: optimal by 1000 B, what is small counted for each reader",),
        ),
        (800, 1000, ("certificate: within 25.00% of optimal",)),
        (999, 1000, ("certificate: within 0.11% of optimal",)),
    ],
)
def test_the_certificate(bound: int | None, predicted: int, line: tuple[str, ...]) -> None:
    plan = dataclasses.replace(PLAN, search_bytes=1000, predicted_bytes=predicted, bound=bound)
    assert certificate_lines(plan) == line
    assert set(line) <= set(summary_lines(plan))


def test_every_line_fits_on_a_wide_terminal() -> None:
    assert max(map(len, plan_text(PLAN).splitlines())) <= 200


@pytest.mark.parametrize("n, left_out", [(0, 3), (2, 1), (3, 0), (None, 0)])
def test_how_many_activations(n: int | None, left_out: int) -> None:
    sections = plan_sections(PLAN, n)
    found = {s.title: s for s in sections}.get("other tensors, largest first")
    shown = len(found.rows) if found else 0
    assert shown + left_out == 3
    if found:
        assert found.left_out == left_out


def test_bytes_are_those_of_the_fullest_device() -> None:
    rows = {r.tensor: r.nbytes for s in plan_sections(PLAN) for r in s.rows}
    assert rows["x"] == 32 * 512 * 4  # 63 rows in two parts
    assert rows["Adam/m/dense/kernel"] == 128 * 130 * 4
    assert rows["iteration"] == 8


def test_a_plan_without_shapes_shows_its_layouts() -> None:
    text = plan_text(dataclasses.replace(PLAN, specs={}, variables={}))
    assert "dense/MatMul" in text
    assert "0,1" in text


@pytest.mark.parametrize(
    "n, short, both",
    [
        (0, "0 B", "0 B"),
        (1023, "1023 B", "1023 B"),
        (1536, "1.50 KiB", "1.50 KiB (1536 bytes)"),
        (3 * 2**30, "3.00 GiB", "3.00 GiB (3221225472 bytes)"),
        (5 * 2**50, "5120.00 TiB", "5120.00 TiB (5629499534213120 bytes)"),
    ],
)
def test_sizes(n: int, short: str, both: str) -> None:
    assert (size_text(n), bytes_text(n)) == (short, both)
