"""Random plans for a captured step, and what the step yields under a plan."""

from __future__ import annotations

import random

import numpy as np
import tensorflow as tf

from tofu_tf.capture.captured import Captured
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, WEIGHT, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan import machine as machines
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.rewrite.placed import Placed
from tofu_tf.runtime.function import PlacedFunction
from tofu_tf.tdl import strategies


def random_layout(shape: tuple[int, ...], cuts: int, rng: random.Random) -> Layout:
    if rng.random() < 0.1:
        return Layout((None,) * cuts, home=True)
    choices = [None, *(d for d, n in enumerate(shape) if n > 1)]
    return Layout(tuple(rng.choice(choices) for _ in range(cuts)))


def random_strategy(
    node: Node, describing: Describing, factors: tuple[int, ...], rng: random.Random
) -> Strategy:
    described = describing(node)
    assert described is not None, node.op
    if rng.random() < 0.1:
        return Strategy((None,) * len(factors), home=True)
    for _ in range(20):
        applied = rng.choice(described.applied)
        choices = [None, *applied.axes, *applied.axes]
        axes = tuple(rng.choice(choices) for _ in factors)
        if strategies.is_legal(applied.description, axes, factors):
            return Strategy(axes, body=applied.variant.name)
    return Strategy((None,) * len(factors))


def write_strategy(node: Node, describing: Describing, layout: Layout) -> Strategy:
    """The strategy under which a node writes a variable just where it lies."""
    if layout.home:
        return Strategy(layout.cuts, home=True)
    described = describing(node)
    assert described is not None, node.op
    applied = described.applied[0]
    dims = applied.description.writes[-1].dims
    return Strategy(
        tuple(None if c is None else dims[c].axis for c in layout.cuts), body=applied.variant.name
    )


def random_plan(graph: Graph, workers: int, seed: int) -> Plan:
    rng = random.Random(seed)
    machine = machines.imagined(workers)
    factors = machine.factors
    describing = Describing(graph)
    versions = traversal.version_variables(graph)
    of_variable = {
        name: random_layout(v.spec.shape, len(factors), rng) for name, v in graph.variables.items()
    }
    layouts: dict[Ref, Layout] = {}
    chosen: dict[str, Strategy] = {}
    for node in graph:
        for ref in node.refs:
            if ref in versions:
                layouts[ref] = of_variable[versions[ref]]
            elif node.op == CONST:
                layouts[ref] = Layout((None,) * len(factors))
            else:
                layouts[ref] = random_layout(graph.spec(ref).shape, len(factors), rng)
        if node.op in (CONST, PLACEHOLDER, VARIABLE, WEIGHT):
            continue
        if node.writes:
            written = {of_variable[v] for v in node.writes}
            if len(written) > 1:  # one op writes its variables alike
                for v in node.writes:
                    of_variable[v] = of_variable[node.writes[0]]
                return random_plan(graph, workers, seed + 1000)
            chosen[node.name] = write_strategy(node, describing, of_variable[node.writes[0]])
        else:
            chosen[node.name] = random_strategy(node, describing, factors, rng)
    return Plan(machine, layouts, chosen, traversal.fingerprint(graph))


def run_placed(
    placed: Placed, captured: Captured, feeds: list[np.ndarray]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Outputs of one step on logical CPUs, and every variable's value after it, joined from its
    shards.
    """
    devices = {n.name: n.device for n in placed.graph_def.node}
    parts = []
    for shard in placed.shards:
        value = captured.variables[shard.variable].numpy()
        index = tuple(slice(lo, hi) for lo, hi in shard.region.bounds)
        with tf.device(devices[shard.placeholder]):
            parts.append(tf.Variable(value[index]))
    function = PlacedFunction(placed)
    extra = [captured.captures[name] for name in captured.captures]
    outputs = function([*feeds, *extra], [p.handle for p in parts])
    after = {name: np.array(v.numpy()) for name, v in captured.variables.items()}
    for shard, part in zip(placed.shards, parts, strict=True):
        index = tuple(slice(lo, hi) for lo, hi in shard.region.bounds)
        after[shard.variable][index] = part.numpy()
    return [o.numpy() for o in outputs], after
