"""Read off a step's timeline: parts of weights leave their owners just before they are used."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tofu_tf
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan

v1 = tf.compat.v1
LAYERS, WIDTH = 6, 128
ROWS = 2048  # so many that it costs less to gather a weight than to move activations


def deep_net() -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        h = v1.placeholder(tf.float32, [ROWS, WIDTH], "x")
        for i in range(LAYERS):
            w = v1.get_variable(f"w{i}", [WIDTH, WIDTH], use_resource=True)
            h = tf.tanh(tf.matmul(h, w, name=f"product{i}"), name=f"layer{i}")
        tf.reduce_mean(h, name="out")
    return graph


@pytest.fixture(params=[2, 4], ids=["k=2", "k=4"])
def traced(request: pytest.FixtureRequest):
    """(placed GraphDef, node -> (start, end) in microseconds) of one step over k logical CPUs."""
    k = request.param
    cuts = "".join(f"d{s}" for s in range(k // 2))
    constraints = {
        f"{name}{i}": (cuts, None) for name in ("product", "layer") for i in range(LAYERS)
    }
    placed, plan = tofu_tf.partition(
        deep_net().as_graph_def(), fetches=["out"], machine=k, constraints=constraints
    )
    values = {f"w{i}": np.random.RandomState(i).randn(WIDTH, WIDTH) * 0.1 for i in range(LAYERS)}
    x = np.random.RandomState(9).randn(ROWS, WIDTH)
    expected = x
    for w in values.values():
        expected = np.tanh(expected @ w)
    # what initialises variables is no part of a step
    step = v1.graph_util.extract_sub_graph(placed, ["out"])
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(placed, name="")
        filled = [fill(graph, plan, name, w.astype("float32")) for name, w in values.items()]
    trace = v1.RunMetadata()
    config = v1.ConfigProto(device_count={"CPU": k})
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # would merge identities
    with v1.Session(graph=graph, config=config) as session:
        session.run(filled)
        out = session.run("out:0", {"x:0": x})
        full = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        session.run("out:0", {"x:0": x}, full, trace)
    np.testing.assert_allclose(out, expected.mean(), rtol=1e-4)
    times = {
        node.node_name: (
            node.all_start_micros + node.op_start_rel_micros,
            node.all_start_micros + node.op_end_rel_micros,
        )
        for device in trace.step_stats.dev_stats
        for node in device.node_stats
    }
    return step, times


def fill(graph: tf.Graph, plan: Plan, name: str, value: np.ndarray) -> list[tf.Operation]:
    """What gives every shard of a variable its part of `value`."""
    regions = layout_regions(
        plan.layouts[plan.variables[name].ref], value.shape, plan.machine.factors
    )
    made = []
    for operation in graph.get_operations():
        if operation.type == "VarHandleOp":
            variable, _, worker = operation.get_attr("shared_name").decode().partition("/shard")
            if variable == name:
                bounds = regions[int(worker)].bounds
                part = value[tuple(slice(lo, hi) for lo, hi in bounds)]
                with tf.device(operation.device):
                    made.append(
                        tf.raw_ops.AssignVariableOp(resource=operation.outputs[0], value=part)
                    )
    return made


def leaving(placed: tf.compat.v1.GraphDef) -> dict[tuple[int, str], list[str]]:
    """(layer, owner) -> the nodes of the layer's weight that other devices read."""
    device = {node.name: node.device for node in placed.node}
    found: dict[tuple[int, str], list[str]] = {}
    for node in placed.node:
        for source in (edge.partition(":")[0] for edge in node.input if edge[0] != "^"):
            if source[0] == "w" and device[source] != node.device:
                found.setdefault((int(source[1 : source.index("/")]), device[source]), []).append(
                    source
                )
    return found


def test_a_weight_leaves_after_the_layer_before_it(traced):
    placed, times = traced
    device = {node.name: node.device for node in placed.node}
    left = leaving(placed)
    workers = set(device.values())
    assert set(left) == {(i, d) for i in range(LAYERS) for d in workers}  # all are gathered
    for (layer, owner), nodes in left.items():
        if layer == 0:
            continue  # nothing comes before it
        before = [
            n for n in times if n.startswith(f"layer{layer - 1}/piece") and device[n] == owner
        ]
        assert before
        done = max(times[n][1] for n in before)
        for node in nodes:
            assert times[node][0] >= done, f"{node} left before {before} was done"


def test_control_edges_stay_on_one_device(traced):
    placed, _ = traced
    device = {node.name: node.device for node in placed.node}
    # but for what is fetched, which waits for all members of collectives, wherever they are
    inner = [node for node in placed.node if node.name != "out"]
    edges = [(e[1:], node) for node in inner for e in node.input if e[0] == "^"]
    assert edges
    assert all(device[source] == node.device for source, node in edges)
