"""Partitions a GraphDef over k devices, runs it in a plain Session, and compares with the original.

  python examples/partition_graphdef.py --devices=4
  python examples/partition_graphdef.py --graph=model.pb --fetches=probabilities --batch=32

Without --graph it builds one: a classifier of handwritten digits whose step yields the loss and
updates the weights. With one, Placeholders are fed with random numbers; weights must be constants.
Exit code 1 when the partitioned graph's values are not the original's, or when it moves other bytes
than the plan predicts; 2 when the graph cannot be partitioned.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn import datasets
from tensorflow.core.framework import graph_pb2

import tofu_tf
from tofu_tf.graph import files, persistence
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.plan.plans import Plan
from tofu_tf.report import counting, tables
from tofu_tf.report.devices import device_shares

v1 = tf.compat.v1

_GRAPH = flags.DEFINE_string("graph", None, "A .pb or .pbtxt file; by default a graph is built.")
_FETCHES = flags.DEFINE_list("fetches", None, "Tensors to compute, with --graph.")
_BATCH = flags.DEFINE_integer("batch", 64, "Size of unknown first dimensions.", lower_bound=1)
_DEVICES = flags.DEFINE_integer("devices", 4, "Over how many logical CPUs.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 5, "How often to run both graphs.", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", None, "Where to write the placed graph (.pb or .pbtxt).")
_SEED = flags.DEFINE_integer("seed", 0, "Of weights and of fed numbers.", lower_bound=0)

flags.register_multi_flags_validator(
    ["graph", "fetches"],
    lambda given: bool(given["graph"]) == bool(given["fetches"]),
    "--graph and --fetches go together",
)

RTOL, ATOL = 1e-4, 1e-5  # float32 after a few steps: sums in another order


@dataclasses.dataclass(frozen=True)
class Program:
    """A graph, what to compute and run, its variables' values, and what each step is fed with."""

    graph_def: graph_pb2.GraphDef
    fetches: tuple[str, ...]
    targets: tuple[str, ...]
    variables: Mapping[str, np.ndarray]
    feeds: Sequence[Mapping[str, np.ndarray]]


def digits_program() -> Program:
    """One step of gradient descent on handwritten digits: 64 pixels, a hidden layer, 10 classes."""
    random = np.random.RandomState(_SEED.value)
    images, digits = datasets.load_digits(return_X_y=True)
    variables = {
        "hidden": random.normal(0, 0.1, (64, 256)).astype("float32"),
        "logits": random.normal(0, 0.1, (256, 10)).astype("float32"),
    }
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [_BATCH.value, 64], "x")
        y = v1.placeholder(tf.int64, [_BATCH.value], "y")
        weights = [
            v1.get_variable(name, value.shape, use_resource=True)
            for name, value in variables.items()
        ]
        hidden = tf.nn.relu(tf.matmul(x, weights[0]))
        logits = tf.matmul(hidden, weights[1])
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        loss = tf.reduce_mean(each, name="loss")
        gradients = tf.gradients(loss, weights)
        updates = [
            w.assign_sub(0.5 * g, read_value=False) for w, g in zip(weights, gradients, strict=True)
        ]
        tf.group(*updates, name="train")
    feeds = []
    for step in range(_STEPS.value):
        rows = (np.arange(_BATCH.value) + step * _BATCH.value) % len(images)
        feeds.append({"x:0": images[rows].astype("float32") / 16, "y:0": digits[rows]})
    return Program(graph.as_graph_def(), ("loss:0",), ("train",), variables, feeds)


def file_program(path: str, fetches: Sequence[str]) -> Program:
    """A graph from a file, fed with random numbers."""
    graph_def = files.read_graph_def(path)
    random = np.random.RandomState(_SEED.value)
    feeds: list[dict[str, np.ndarray]] = [{} for _ in range(_STEPS.value)]
    for node in graph_def.node:
        if node.op != "Placeholder":
            continue
        shape = [d.size if d.size >= 0 else _BATCH.value for d in node.attr["shape"].shape.dim]
        dtype = tf.as_dtype(node.attr["dtype"].type).as_numpy_dtype
        for fed in feeds:
            value = random.uniform(size=shape) if np.dtype(dtype).kind == "f" else np.zeros(shape)
            fed[f"{node.name}:0"] = value.astype(dtype)
    return Program(graph_def, tuple(f if ":" in f else f"{f}:0" for f in fetches), (), {}, feeds)


def run(
    program: Program, graph_def: graph_pb2.GraphDef, plan: Plan | None
) -> list[list[np.ndarray]]:
    """What each step yields, in a Session; `plan` says where a placed graph's shards lie."""
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        filled = fill_variables(graph, program.variables, plan)
    config = v1.ConfigProto(device_count={"CPU": _DEVICES.value})
    with v1.Session(graph=graph, config=config) as session:
        session.run(filled)
        return [
            session.run([list(program.fetches), list(program.targets)], fed)[0]
            for fed in program.feeds
        ]


def fill_variables(
    graph: tf.Graph, values: Mapping[str, np.ndarray], plan: Plan | None
) -> list[tf.Operation]:
    """What gives each variable its value: ``name/shard3`` its region of it, a whole one all."""
    made = []
    for handle in graph.get_operations():
        if handle.type != "VarHandleOp":
            continue
        name, shard, worker = handle.get_attr("shared_name").decode().partition("/shard")
        value = values[name]
        if shard and plan is not None:
            layout = plan.layouts[plan.variables[name].ref]
            region = layout_regions(layout, value.shape, plan.machine.factors)[int(worker)]
            value = value[tuple(slice(lo, hi) for lo, hi in region.bounds)]
        with tf.device(handle.device):
            made.append(tf.raw_ops.AssignVariableOp(resource=handle.outputs[0], value=value))
    return made


def count_moved(placed: graph_pb2.GraphDef) -> counting.Communication:
    """The bytes between devices; what brings feeds in and results out is counted apart."""
    step = persistence.step_of(placed)
    return counting.count_communication(step, *counting.edge_nodes(step))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) > 1:
        raise app.UsageError(f"what is {' '.join(arguments[1:])!r}? Only flags are taken.")
    try:
        return show()
    except tofu_tf.TofuError as error:  # says itself where, what and what to do
        print(error, file=sys.stderr)
        return 2


def show() -> int:
    """Partitions, prints, runs and compares; the exit code."""
    program = file_program(_GRAPH.value, _FETCHES.value) if _GRAPH.value else digits_program()
    placed, plan = tofu_tf.partition(
        program.graph_def,
        fetches=program.fetches,
        targets=program.targets,
        machine=_DEVICES.value,
        batch=_BATCH.value,
    )
    print(plan)
    moved = count_moved(placed)
    print(f"\n{len(program.graph_def.node)} nodes became {len(placed.node)}\n")
    tables.show(
        tables.devices_table(device_shares(persistence.step_of(placed), moved)),
        "\n".join(tables.counted_lines(moved)),
    )
    if _OUTPUT.value:
        files.write_graph_def(placed, _OUTPUT.value)
        print(f"written to {_OUTPUT.value}")

    original = run(program, program.graph_def, None)
    partitioned = run(program, placed, plan)
    print("\nstep  largest difference  first value")
    for step, (ours, theirs) in enumerate(zip(partitioned, original, strict=True), start=1):
        far = max(float(np.max(np.abs(a - b))) for a, b in zip(ours, theirs, strict=True))
        print(f"{step:4d}  {far:18.2e}  {np.ravel(ours[0])[0]:.8f}")
    equal = all(
        np.allclose(a, b, RTOL, ATOL)
        for ours, theirs in zip(partitioned, original, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )
    print(f"{'equal' if equal else 'NOT equal'} within rtol {RTOL}, atol {ATOL}")
    as_predicted = moved.total == plan.predicted_bytes
    print(f"{moved.total} bytes between devices, {plan.predicted_bytes} predicted")
    return 0 if equal and as_predicted else 1


if __name__ == "__main__":
    app.run(main)
