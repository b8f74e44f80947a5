"""Every device does its share of nodes and bytes, none holds all; names change nothing."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from models import build_model

from tests.end_to_end import oracle
from tofu_tf.cost import evaluation
from tofu_tf.ops import applicable
from tofu_tf.report import counting
from tofu_tf.tdl.regions import Region

R = np.random.RandomState(0)
K, LARGE = 4, 1024  # bytes above which a node's output counts
X, Y = R.rand(64, 256).astype("float32"), R.rand(64, 256).astype("float32")


def mlp() -> keras.Model:
    model = build_model("mlp", widths=(256, 512, 512, 256), classes=None)
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


@pytest.fixture(scope="module")
def step():
    model = oracle.check(mlp, (X, Y), K, batch=64)
    return oracle.steps(model)[0]


def outputs(graph_def: tf.compat.v1.GraphDef):
    """(node, its device, shape, bytes) of every tensor of static shape, variables' reads too."""
    graph = counting.infer_shapes(counting._with_given_shapes(graph_def))
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            if tensor.dtype.size and tensor.shape.is_fully_defined():
                nbytes = tensor.shape.num_elements() * tensor.dtype.size
                yield operation, operation.device, tuple(tensor.shape), nbytes


def test_every_node_has_a_full_device(step):
    known = {d.name for d in tf.config.list_logical_devices("CPU")[:K]}
    seen = {tf.DeviceSpec.from_string(n.device) for n in step.placed.graph_def.node}
    assert {f"/device:{d.device_type}:{d.device_index}" for d in seen} == known
    assert all((d.job, d.replica, d.task) == ("localhost", 0, 0) for d in seen)


def test_devices_share_alike(step):
    """Bytes of all outputs, and nodes whose outputs are large: within 20% of each other."""
    nbytes, nodes = defaultdict(int), defaultdict(set)
    for operation, device, _, size in outputs(step.placed.graph_def):
        if operation.name in (*step.placed.feed_nodes, *step.placed.result_nodes):
            continue
        nbytes[device] += size
        if size > LARGE:
            nodes[device].add(operation.name)
    counts = [len(names) for names in nodes.values()]
    assert len(nbytes) == len(counts) == K
    assert max(nbytes.values()) <= 1.2 * min(nbytes.values()), dict(nbytes)
    assert max(counts) <= 1.2 * min(counts), counts


def test_no_device_makes_a_whole_weight_unless_the_plan_says_so(step):
    """A piece has a cut variable's full shape only where its strategy reads or writes all of it."""
    plan, graph = step.plan, step.captured.graph
    cut = {v.spec.shape for v in graph.variables.values() if _is_cut(plan.layouts[v.ref])}
    assert cut >= {(256, 256), (256, 512), (512, 512), (512, 256)}
    shaped = {node.name for node in graph if any(spec.shape in cut for spec in node.outputs)}
    whole = set()
    for operation, _, shape, _ in outputs(step.placed.graph_def):
        name, _, rest = operation.name.partition("/piece")
        made = graph.nodes[name].outputs if name in graph.nodes else ()
        if shape in cut and any(spec.shape == shape for spec in made):
            whole.add((name, int(re.match(r"\d+", rest)[0])))
    assert whole <= _said_to_be_whole(graph, plan)
    assert len(whole) < 0.1 * len(shaped) * K  # and it says so of few


def _is_cut(layout) -> bool:
    return not layout.replicated and not layout.home


def _said_to_be_whole(graph, plan) -> set[tuple[str, int]]:
    """(node, worker) of tensors of which some piece on that worker reads, or writes, everything."""
    work_of = evaluation.works(plan, applicable.Describing(graph))
    said = set()
    for node in graph:
        work = work_of(node)
        if work is None:
            continue
        reads = zip(node.inputs, work.reads, strict=True)
        writes = zip(node.refs, work.writes, strict=True)
        for ref, regions in (*reads, *writes):
            for w in range(K):
                if regions[w] == Region.whole(graph.spec(ref).shape):
                    said.add((ref.node, w))
    return said


@pytest.mark.parametrize("k", [2, 4])
def test_other_names_give_the_same_plan(k):
    """cases.md 13: layers with random names, the same layouts and the same bytes."""

    def make(names):
        layers = keras.layers
        model = keras.Sequential(
            [layers.Input((8, 8, 3)), layers.Conv2D(16, 3, use_bias=False, name=names[0])]
        )
        model.add(layers.BatchNormalization(name=names[1]))
        model.add(layers.ReLU(name=names[2]))
        model.add(layers.Flatten(name=names[3]))
        model.add(layers.Dense(48, name=names[4]))
        model.compile(keras.optimizers.Adam(1e-3), "mse")
        return model

    plain = ["a", "b", "c", "d", "e"]
    letters = list("abcdefghijklmnopqrstuvwxyz")
    data = (R.rand(8, 8, 8, 3).astype("float32"), R.rand(8, 48).astype("float32"))

    def planned(names):
        model = oracle.distributed(lambda: make(names), k, batch=data)
        plan, graph = model.tofu.plan, oracle.steps(model)[0].captured.graph
        variables = [(plan.layouts[v.ref], v.spec) for v in graph.variables.values()]
        # The order of nodes may follow names; what lies how must not.
        tensors = sorted(str((graph.spec(ref), layout)) for ref, layout in plan.layouts.items())
        return variables, tensors, plan.predicted_bytes, plan.search_bytes

    expected = planned(plain)
    for seed in range(3):
        random = np.random.RandomState(seed)
        names = ["".join(random.choice(letters, 6)) + str(i) for i in range(len(plain))]
        assert planned(names) == expected, names
