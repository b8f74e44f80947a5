"""A plan given back is refused when it is for something else or was edited into something wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.search import steps
from tofu_tf import errors
from tofu_tf.graph.ir import Ref
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.search.checking import check_plan
from tofu_tf.search.planning import find_plan

SIZES = (96, 160, 64)


def plan_of(batch: int = 64) -> Plan:
    return find_plan(steps.training(batch, SIZES), imagined(4))


def with_layout(name: str, layout: Layout) -> Callable[[Plan], Plan]:
    return lambda p: dataclasses.replace(p, layouts={**p.layouts, Ref.parse(name): layout})


def with_strategy(name: str, strategy: Strategy) -> Callable[[Plan], Plan]:
    return lambda p: dataclasses.replace(p, strategies={**p.strategies, name: strategy})


def test_its_own_plan_is_fine() -> None:
    check_plan(plan_of(), steps.training(64, SIZES), imagined(4))


@pytest.mark.parametrize(
    "edit, text",
    [
        (with_layout("w0:0", Layout((0,))), "1 cuts, the machine has 2"),
        (with_layout("w0:0", Layout((2, 0))), "it has no dimension 2"),
        (with_layout("steps:0", Layout((0, 0))), "it has no dimension 0"),
        (with_layout("w0:0", Layout((None, None))), "variable w0 has versions that lie diff"),
        (with_strategy("MatMul", Strategy(("q", "i"))), "q is none of its axes i, j, k"),
        (with_strategy("MatMul", Strategy(("i",))), "1 cuts, the machine has 2"),
        (with_layout("w9:0", Layout((0, 1))), "speaks of tensor w9:0, which the graph has not"),
        (with_strategy("MatMull", Strategy(("i", "j"))), "speaks of node MatMull"),
        (with_strategy("MatMul", Strategy(("i", "j"), body="fast")), "it has no body 'fast'"),
        (
            with_strategy("AssignSubVariableOp", Strategy((None, None))),
            "AssignSubVariableOp .* writes a variable that lies as",
        ),
    ],
)
def test_edited_plans(edit: Callable[[Plan], Plan], text: str) -> None:
    with pytest.raises(errors.PlanError, match=text):
        check_plan(edit(plan_of()), steps.training(64, SIZES), imagined(4))


def test_another_model_or_batch() -> None:
    for other in (steps.training(64, (96, 160, 65)), steps.training(65, SIZES)):
        with pytest.raises(errors.PlanError, match="a plan for another model"):
            check_plan(plan_of(), other, imagined(4))


def test_another_machine() -> None:
    with pytest.raises(errors.PlanError, match=r"is for 4 devices \(factors 2 x 2\)"):
        check_plan(plan_of(), steps.training(64, SIZES), imagined(8))


def test_other_names() -> None:
    with pytest.raises(errors.PlanError, match="has no layout for v0:0"):
        check_plan(plan_of(), steps.training(64, SIZES, "v"), imagined(4))


def test_a_strategy_that_is_missing() -> None:
    plan = plan_of()
    fewer = {n: s for n, s in plan.strategies.items() if n != "MatMul"}
    with pytest.raises(errors.PlanError, match="has no strategy for MatMul"):
        check_plan(
            dataclasses.replace(plan, strategies=fewer), steps.training(64, SIZES), imagined(4)
        )
