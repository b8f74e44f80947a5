"""Layouts asked for by name: what they mean, and all that is wrong with them at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.search import steps
from tofu_tf import errors
from tofu_tf.graph.ir import Ref
from tofu_tf.plan.constraints import wanted_layouts
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.search.planning import find_plan

SIZES = (96, 160, 64)


@pytest.mark.parametrize(
    "name, wish, expected",
    [
        ("w0", (None, "d0"), {"w0:0": (1, None)}),
        ("w0:0", ("d1", "d0"), {"w0:0": (1, 0)}),
        ("w0", ("d0d1", None), {"w0:0": (0, 0)}),
        ("w0", (None, ("d0", "d1")), {"w0:0": (1, 1)}),
        ("w?", ("d0", None), {"w0:0": (0, None), "w1:0": (0, None)}),
        ("x", (None, None), {"x:0": (None, None)}),
        ("MatMul", ("d1", None), {"MatMul:0": (None, 0)}),
        ("MatMul:0", ("d1", None), {"MatMul:0": (None, 0)}),
    ],
)
def test_meaning(name: str, wish: Any, expected: dict[str, tuple[int | None, ...]]) -> None:
    found = wanted_layouts(steps.training(64, SIZES), imagined(4), {name: wish})
    assert found == {Ref.parse(r): Layout(cuts) for r, cuts in expected.items()}


@pytest.mark.parametrize(
    "name, wish, text",
    [
        ("v0", (None, "d0"), "'v0' matches no variable"),
        ("w0/momentun", (None, "d0"), "did you mean 'w0/momentum'"),
        ("w0", ("d0",), r"is not one entry for each dimension of w0:0 \[96, 160\]"),
        ("w0", (None, "d2"), r"'d2' \(dimension 1\) names no cut"),
        ("w0", (None, "columns"), "'columns' .* names no cut"),
        ("w0", ("d0", "d0"), "cut d0 is to divide dimensions 0 and 1"),
        ("x", ("d0d1", None), r"axis 0 of \[3, 96\] has size 3 and cannot be cut into 4 parts"),
    ],
)
def test_refused(name: str, wish: Any, text: str) -> None:
    with pytest.raises(errors.ConstraintError, match=text):
        wanted_layouts(steps.training(3, SIZES), imagined(4), {name: wish})


def test_all_offenders_at_once() -> None:
    with pytest.raises(errors.ConstraintError) as caught:
        wanted_layouts(
            steps.training(3, SIZES),
            imagined(4),
            {"nothing": (None,), "w0": ("d0", "d0"), "x": ("d0d1", None)},
            {"w9": Layout((0, 0)), "w1": Layout((0,))},
        )
    for name in ("'nothing'", "'w0'", "'x'", "'w9'", "'w1'"):
        assert name in str(caught.value)


@pytest.mark.parametrize("wish", [(None, "d0"), ("d0", None), (None, None)])
def test_plans_follow(wish: Any) -> None:
    graph = steps.training(64, SIZES)
    free = find_plan(graph, imagined(2))
    plan = find_plan(graph, imagined(2), constraints={"w0": wish})
    layout = plan.layouts[graph.variables["w0"].ref]
    assert layout == Layout((wish.index("d0") if "d0" in wish else None,))
    assert plan.search_bytes >= free.search_bytes or layout.replicated
    assert all(plan.layouts[r] == layout for r in _versions(graph, "w0"))


def test_pinned_layouts_hold_for_another_batch() -> None:
    graph, smaller = steps.training(64, SIZES), steps.training(5, SIZES)
    plan = find_plan(graph, imagined(8))
    pinned = {v.name: plan.layouts[v.ref] for v in graph.variables.values()}
    again = find_plan(smaller, imagined(8), pinned=pinned)
    assert {v.name: again.layouts[v.ref] for v in smaller.variables.values()} == pinned


def test_a_copied_weight_is_updated_everywhere_without_bytes() -> None:
    graph = steps.product(64, 64, 64)
    plan = find_plan(graph, imagined(2), constraints={"w": (None, None), "a": ("d0", None)})
    assert plan.predicted_bytes == 0
    assert plan.reasons[graph.variables["w"].ref] == "asked for"


def _versions(graph: Any, name: str) -> list[Ref]:
    written = [n.version(name) for n in graph if name in n.writes]
    return [graph.variables[name].ref, *written]
