"""Pictures of tensors and operators: who owns what, who reads what from whom."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import tofu_tf
from tofu_tf import errors
from tofu_tf.capture.graph_defs import capture_graph_def
from tofu_tf.cost.evaluation import works
from tofu_tf.graph.ir import CONST, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.pipeline import find_plan
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.report.pictures import tensor_picture
from tofu_tf.report.pieces import op_picture
from tofu_tf.report.steps import Planned


def trained() -> Graph:
    """A training step of one layer on a variable (11, 6)."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (8, 11), "x")
        w = tf.Variable(np.zeros((11, 6), np.float32), name="w", shape=(11, 6))
        loss = tf.reduce_sum(tf.matmul(x, w, name="product") ** 2.0, name="loss")
        step = w.assign_sub(tf.gradients(loss, w)[0], name="step")
    name = next(o.name for o in graph.get_operations() if o.type == "AssignSubVariableOp")
    del step
    return capture_graph_def(graph.as_graph_def(), ["loss", name], (), None).graph


@pytest.fixture(scope="module")
def step() -> tuple[Graph, Plan]:
    graph = trained()
    return graph, find_plan(graph, imagined(4), constraints={"w": ("d0", "d1")})


def test_a_tensor_and_an_op(step: tuple[Graph, Plan], golden: Callable[..., None]) -> None:
    golden(tensor_picture(*step, "w") + "\n\n" + op_picture(*step, "product"), "pictures")


def lying(layout: Layout, shape: tuple[int, ...], k: int) -> str:
    """The picture of a tensor of this shape that lies so."""
    with tf.Graph().as_default() as graph_def:
        tf.identity(tf.compat.v1.placeholder(tf.int8, shape, "x"), name="y")
    graph = capture_graph_def(graph_def.as_graph_def(), ["y"], (), None).graph
    plan = Plan(imagined(k), {Ref("x"): layout}, {}, "")
    return tensor_picture(graph, plan, "x")


@pytest.mark.parametrize(
    "layout, shape, k, owners",
    [
        (Layout(()), (3,), 1, [["CPU:0"]]),
        (Layout((0,)), (5,), 3, [["CPU:0", "CPU:1", "CPU:2"]]),
        (Layout((1,)), (4, 5), 2, [["CPU:0", "CPU:1"]]),
        (Layout((0, 1)), (4, 5), 4, [["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]]),
        (Layout((1, 0)), (4, 5), 4, [["CPU:0", "CPU:2"], ["CPU:1", "CPU:3"]]),
        (Layout((None, 0)), (4, 5), 4, [["CPU:0 CPU:2", "CPU:1 CPU:3"]]),
        (Layout((None, None)), (4, 5), 4, [["all 4 devices"]]),
        (Layout((None, None), home=True), (), 4, [["CPU:0"]]),
        (
            Layout((0, 2, 3)),
            (2, 9, 2, 5),
            8,
            [["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"], ["CPU:4", "CPU:5"], ["CPU:6", "CPU:7"]],
        ),
    ],
)
def test_the_cells_are_the_layout(
    layout: Layout, shape: tuple[int, ...], k: int, owners: list[list[str]]
) -> None:
    text = lying(layout, shape, k)
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    assert [row for row in rows if any(row)] == owners
    assert ("\nat dimension 0 1:2\n" in text) == (k == 8)  # one grid for each half


def test_uneven_parts_are_drawn_and_said() -> None:
    text = lying(Layout((0,)), (11,), 3)
    assert "owns 3 B to 4 B, as sizes do not divide" in text
    assert all(part in text for part in ("0:3 (3)", "3:7 (4)", "7:11 (4)"))
    first, second, third = (len(cell) for cell in re.search(r"\+(-+)\+(-+)\+(-+)\+", text).groups())
    assert first < second == third


def test_what_an_op_reads_is_what_its_work_says(step: tuple[Graph, Plan]) -> None:
    graph, plan = step
    work_of = works(plan, Describing(graph))
    drawn = 0
    for node in graph:
        work = work_of(node)
        if work is None:
            continue
        for w, piece in enumerate(
            re.split(r"^(?=CPU:\d)", op_picture(*step, node.name), flags=re.M)[1:]
        ):
            if not work.boxes.present[w]:
                assert "no piece" in piece
                continue
            for i, ref in enumerate(node.inputs):
                if graph.nodes[ref.node].op != CONST and work.reads[i][w] is not None:
                    assert f"reads {i}: {ref} {work.reads[i][w]}" in piece
                    drawn += 1
    assert drawn > 20


@pytest.fixture(scope="module")
def concrete() -> Planned:
    w = tf.Variable(np.ones((36, 36)), name="w")
    options = {"devices": 2, "device_type": "CPU", "lowering": "collective"}
    function = tofu_tf.function(lambda x: tf.matmul(tf.matmul(x, w), w, name="last"), **options)
    return function.get_concrete_function(tf.TensorSpec([64, 36], tf.float64))


def last(concrete: Planned) -> Node:
    return next(n for n in concrete.captured.graph if n.name.endswith("last"))


def test_a_step_that_ran(concrete: Planned) -> None:
    text = tofu_tf.describe(concrete, op=last(concrete).name, tensor="w")
    assert text.startswith("variable w: f64[36")
    assert f"op {last(concrete).name} (MatMul) over 2 devices" in text
    assert re.search("(all-gather|all-reduce|all-to-all) among CPU:0", text)


@pytest.mark.parametrize(
    "picture, name, said",
    [
        (tensor_picture, "v", "tensor v: not in the graph"),
        (tensor_picture, "w:1", "tensor w:1: not in the graph"),
        (op_picture, "prodct", "did you mean product"),
        (op_picture, "x", "op x: a Placeholder"),
    ],
)
def test_what_is_not_there(
    step: tuple[Graph, Plan], picture: Callable[..., str], name: str, said: str
) -> None:
    with pytest.raises(errors.PlanError, match=said):
        picture(*step, name)
