"""Which tensors share a decision, which are copied or kept once, which operators are alike."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.graph.building import fed, graph_of
from tests.search import steps
from tofu_tf import errors
from tofu_tf.coarsen.coarsening import coarsen
from tofu_tf.coarsen.groups import COPIED, HOME, Coarse, Place
from tofu_tf.cost.communication import Pricing
from tofu_tf.graph.ir import Graph, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.layouts import Layout


def coarse_of(graph: Graph, **given: object) -> Coarse:
    return coarsen(graph, Describing(graph), **given)  # type: ignore[arg-type]


def test_a_weight_its_gradient_and_its_momentum_are_one_group() -> None:
    graph = steps.training(64, (96, 160, 64))
    coarse = coarse_of(graph)
    for name in ("w0", "w1"):
        group = coarse.groups[coarse.group_of[graph.variables[name].ref]]
        assert graph.variables[f"{name}/momentum"].ref in group.members
        # two versions each of weight and momentum, the gradient, two products and a sum
        assert len(group.members) == 8
    assert coarse.group_of[graph.variables["w0"].ref] != coarse.group_of[graph.variables["w1"].ref]


def test_an_activation_and_its_gradient_are_one_group() -> None:
    graph = steps.training(64, (96, 160, 64))
    coarse = coarse_of(graph)
    hidden = coarse.groups[coarse.group_of[Ref("MatMul")]]
    assert {graph.nodes[r.node].op for r in hidden.members} == {"MatMul", "Relu", "ReluGrad"}


def test_every_tensor_is_in_one_group_or_small() -> None:
    graph = steps.training(64, (96, 160, 64))
    coarse = coarse_of(graph)
    refs = set(graph.refs())
    assert set(coarse.group_of) | set(coarse.small) == refs
    assert not set(coarse.group_of) & set(coarse.small)
    assert sorted(n for o in coarse.operators for n in o.nodes) == sorted(
        n.name for n in graph if n.op not in ("Const", "Variable", "Placeholder")
    )


def test_other_element_widths_stay_apart() -> None:
    def build() -> tf.Tensor:
        x = fed("x", (64, 64))
        return tf.identity(tf.cast(tf.cast(x, tf.float16) * 2, tf.float32) + x, name="out")

    coarse = coarse_of(graph_of(build, ["x"], ["out"]))
    assert sorted((g.itemsize, len(g.members)) for g in coarse.groups) == [(2, 2), (4, 3)]


@pytest.mark.parametrize("elements, grouped", [(256, False), (257, True)])
def test_small_tensors_are_not_grouped(elements: int, grouped: bool) -> None:
    def build() -> tf.Tensor:
        return tf.identity(tf.nn.relu(fed("x", (elements,))), name="out")

    coarse = coarse_of(graph_of(build, ["x"], ["out"]))
    assert bool(coarse.groups) == grouped


def test_operators_inside_a_group_cost_nothing() -> None:
    coarse = coarse_of(steps.training(64, (96, 160, 64)))
    internal = [o for o in coarse.operators if o.internal]
    assert {"Relu", "ReluGrad", "AssignSubVariableOp"} <= {
        o.described.entry.name for o in internal if o.described
    }
    for operator in internal:
        choices = {g: (Layout((0, 0)), Layout((0, 1)), Layout((1, 1))) for g in operator.groups}
        assert not Pricing().matrices(operator, (2, 3), choices).table().any()


def test_counters_are_kept_once_and_scalar_chains_are_copied() -> None:
    def build() -> list[tf.Tensor | tf.Operation]:
        steps_done = steps.variable("steps", (), tf.int64)
        rate = 0.1 / tf.cast(steps.read(steps_done, (), tf.int64), tf.float32)
        w = steps.variable("w", (64, 64))
        loss = tf.reduce_sum(steps.read(w, (64, 64)), name="loss")
        total = steps.variable("total", ())
        return [
            loss,
            tf.raw_ops.AssignAddVariableOp(resource=total, value=loss * 2),
            tf.raw_ops.AssignAddVariableOp(resource=steps_done, value=tf.constant(1, tf.int64)),
            tf.raw_ops.AssignSubVariableOp(resource=w, value=steps.read(w, (64, 64)) * rate),
        ]

    graph = graph_of(build)
    coarse = coarse_of(graph)
    ops = {node.name: node.op for node in graph}
    places = {ops[n]: o.place for o in coarse.operators for n in o.nodes}
    assert coarse.small[graph.variables["steps"].ref] == HOME
    assert coarse.small[graph.variables["total"].ref] == HOME
    assert coarse.small[Ref("loss")] == HOME  # only the metric wants it
    assert coarse.small[Ref("Cast")] == COPIED
    assert places["Cast"] is Place.COPIED  # every worker scales its own part of w
    assert places["AssignAddVariableOp"] is Place.HOME
    assert places["Sum"] is Place.CUT


def test_an_asked_layout_fixes_its_group() -> None:
    graph = steps.training(64, (96, 160, 64))
    ref = graph.variables["w0"].ref
    coarse = coarse_of(graph, wanted={ref: Layout((1,))})
    assert coarse.groups[coarse.group_of[ref]].fixed == Layout((1,))
    assert sum(g.fixed is not None for g in coarse.groups) == 1


def test_tensors_asked_to_lie_differently_are_not_tied() -> None:
    graph = steps.training(64, (96, 160, 64))
    w, slot = graph.variables["w0"].ref, graph.variables["w0/momentum"].ref
    coarse = coarse_of(graph, wanted={w: Layout((0,)), slot: Layout((1,))})
    assert coarse.groups[coarse.group_of[w]].fixed == Layout((0,))
    assert coarse.groups[coarse.group_of[slot]].fixed == Layout((1,))


def test_versions_cannot_lie_differently() -> None:
    graph = steps.training(64, (96, 160, 64))
    version = next(n for n in graph if n.op == "AssignSubVariableOp").version("w0")
    wanted = {graph.variables["w0"].ref: Layout((0,)), version: Layout((1,))}
    with pytest.raises(errors.ConstraintError, match="variable w0: its versions"):
        coarse_of(graph, wanted=wanted)


def test_a_small_tensor_is_grouped_when_asked() -> None:
    graph = steps.product(64, 8, 8)
    coarse = coarse_of(graph, wanted={graph.variables["w"].ref: Layout((0,))})
    assert coarse.groups[coarse.group_of[graph.variables["w"].ref]].fixed == Layout((0,))
