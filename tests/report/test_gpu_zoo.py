"""The steps of both zoos over GPUs that nobody has: every op has a kernel where it is placed.

Beside our own check, Grappler's virtual cluster of GPUs runs some of them in simulation.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster, item

from tests.capture import zoo as models
from tests.zoo import zoo as steps
from tofu_tf.capture.captured import Captured
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.keras_steps import capture_step
from tofu_tf.pipeline import apply_plan, find_plan, with_bytes
from tofu_tf.plan.machine import imagined
from tofu_tf.report import checking, counting
from tofu_tf.rewrite.exporting import with_variables
from tofu_tf.rewrite.placed import Placed

# What GPUs lack in some type: only these may be on the CPU beside them.
NO_GPU_KERNEL = {
    "ArgMax", "ArgMin", "BatchMatMulV2", "CholeskyGrad", "Cumprod", "Cumsum", "MatMul", "Mod",
    "ResizeArea", "ResizeBicubic", "ResizeBicubicGrad", "TruncateMod",
    # of float64
    "SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits",
    "ResourceApplyProximalGradientDescent", "ResourceApplyProximalAdagrad",
}  # fmt: skip
# Go with the ops above: their variables, and what else is done with these.
WITH_THEM = {"VarHandleOp", "ReadVariableOp", "AssignVariableOp"}
SHORT = {
    ("cnn-momentum", 2, "p2p"),
    ("cnn-momentum", 4, "collective"),
    ("losses", 2, "p2p"),
    ("dense", 2, "collective"),
}
CASES = [
    pytest.param(zoo, name, k, way, marks=[] if (name, k, way) in SHORT else pytest.mark.slow)
    for zoo, names in (("models", models.MODELS), ("steps", steps.NAMES))
    for name in names
    for k in (2, 4)
    for way in ("p2p", "collective")
]


@functools.cache
def captured(zoo: str, name: str) -> Captured:
    if zoo == "steps":
        return steps.case(name).captured
    make, data = models.MODELS[name]
    keras.utils.set_random_seed(7)
    given = data(np.random.RandomState(0))
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), given)
    return capture_step(make(), "train", specs)


@functools.cache
def placed(zoo: str, name: str, k: int, lowering: str) -> tuple[Placed, graph_pb2.GraphDef, int]:
    """The placed step, the same with its variables, and the bytes that it should move."""
    graph = captured(zoo, name).graph
    plan = find_plan(graph, imagined(k, "GPU"))
    made = apply_plan(graph, plan, lowering)
    return made, with_variables(made, graph), with_bytes(graph, plan, lowering).predicted_bytes


@pytest.mark.parametrize("zoo, name, k, lowering", CASES)
def test_every_op_has_a_kernel_where_it_is(zoo: str, name: str, k: int, lowering: str) -> None:
    made, graph_def, predicted = placed(zoo, name, k, lowering)
    assert not checking.check_placement(graph_def)
    counted = counting.count_communication(graph_def, made.feed_nodes, made.result_nodes)
    assert counted.total == predicted
    if zoo == "models":  # the others may be too small to be cut
        assert len({n.device for n in graph_def.node if "GPU" in n.device}) == k
    on_host = Counter(node.op for node in graph_def.node if "CPU" in node.device)
    assert set(on_host) <= NO_GPU_KERNEL | WITH_THEM
    assert not WITH_THEM & set(on_host) or NO_GPU_KERNEL & set(on_host)
    for node in graph_def.node:
        if node.op.startswith("Collective"):
            assert node.attr["communication_hint"].s == b"nccl"
            assert "GPU" in node.device


def virtual(k: int) -> Any:
    """A cluster of `k` GPUs and the CPU beside them, as Grappler simulates one."""
    gpu = device_properties_pb2.DeviceProperties(
        type="GPU",
        vendor="NVidia",
        frequency=1500,
        num_cores=80,
        memory_size=16 << 30,
        bandwidth=900 << 20,
        environment={"architecture": "7.0"},
    )
    cpu = device_properties_pb2.DeviceProperties(
        type="CPU", frequency=2000, num_cores=8, memory_size=64 << 30, bandwidth=30 << 20
    )
    host = "/job:localhost/replica:0/task:0/device:"
    named = [(f"{host}GPU:{i}", gpu) for i in range(k)] + [(f"{host}CPU:0", cpu)]
    return cluster.Cluster(
        allow_soft_placement=False,
        disable_detailed_stats=False,
        disable_timeline=False,
        devices=[
            device_properties_pb2.NamedDevice(name=name, properties=properties)
            for name, properties in named
        ],
    )


@pytest.mark.parametrize(
    "zoo, name, k, lowering",
    [
        ("models", "cnn-momentum", 2, "p2p"),
        ("models", "cnn-momentum", 4, "collective"),
        ("steps", "losses", 2, "p2p"),
    ],
)
def test_tensorflow_itself_runs_it_in_simulation(
    zoo: str, name: str, k: int, lowering: str
) -> None:
    made, graph_def, _ = placed(zoo, name, k, lowering)
    full = counting.infer_shapes(graph_def).as_graph_def()  # with every attribute
    meta = meta_graph_pb2.MetaGraphDef(graph_def=full)
    wanted = [*(fetch.partition(":")[0] for fetch in made.fetches), *made.effects]
    meta.collection_def["train_op"].node_list.value.extend(wanted)
    simulated = virtual(k)
    step = item.Item(meta)
    _, _, stats = simulated.MeasureCosts(step)
    # It ran every node, each where it is placed, and received what we count.
    ran: dict[str, str] = {}
    received = 0
    for device in stats.dev_stats:
        for node in device.node_stats:
            if node.node_name.startswith("Recv_"):
                tensors = [output.tensor_description for output in node.output]
                received += sum(t.allocation_description.requested_bytes for t in tensors)
            elif not device.device.startswith("Channel"):
                ran[node.node_name] = device.device
    assert ran == {node.name: node.device for node in full.node}
    counted = counting.count_communication(graph_def, made.feed_nodes, made.result_nodes)
    edges = [*counted.transfers, *counted.fed, *counted.fetched, *counted.hosted]
    assert received == sum(t.nbytes for t in edges if not t.kind.startswith("Collective"))
    peaks = simulated.DeterminePeakMemoryUsage(step)
    used = [peak for device, (peak, _) in peaks.items() if "GPU" in device]
    assert len(used) == k
    assert all(peak > 0 for peak in used)


@pytest.mark.parametrize(
    "device_type, hint, reduces",
    [("GPU", b"nccl", "CollectiveReduceScatterV2"), ("CPU", b"ring", None)],
)
def test_what_collectives_say_of_themselves(
    device_type: str, hint: bytes, reduces: str | None
) -> None:
    """Partial sums go to their owners by a reduce-scatter on GPUs, which CPUs have not."""
    with tf.device("/device:CPU:0"):
        w = tf.Variable(np.ones((64, 64), np.float32), name="w")

    def step(x: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, w), name="last")

    graph = capture_function(step, [tf.TensorSpec([64, 64], tf.float32, "x")]).graph
    wishes = {"x": (None, "d0"), "w": ("d0", None), "MatMul": ("d0", None)}
    plan = find_plan(graph, imagined(2, device_type), constraints=wishes)
    made = apply_plan(graph, plan, "collective")
    nodes = {node.name: node for node in made.graph_def.node}
    found = [node for node in nodes.values() if node.op.startswith("Collective")]
    assert {node.op for node in found} == ({reduces} if reduces else set())
    for node in found:
        assert node.attr["communication_hint"].s == hint
        assert node.attr["merge_op"].s == b"Add"
        assert node.attr["final_op"].s == b"Id"
        assert not node.attr["is_stateless"].b
        assert node.attr["timeout_seconds"].f > 0
        assert node.name in made.effects
        size, key, instance = (
            int(tf.make_ndarray(nodes[edge].attr["value"].tensor)) for edge in node.input[1:4]
        )
        assert size == 2
        assert instance == 1
        assert sorted(made.groups[key]) == sorted(n.device for n in found)
    counted = counting.count_communication(made.graph_def, made.feed_nodes, made.result_nodes)
    assert counted.total == with_bytes(graph, plan, "collective").predicted_bytes > 0
