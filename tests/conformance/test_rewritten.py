"""Every sample once more through the rewriter: its pieces as NodeDefs of one function over
devices.
"""

from __future__ import annotations

import dataclasses
import math
import random
import zlib

import numpy as np
import pytest
import tensorflow as tf

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, Graph, Node, Ref, Variable
from tofu_tf.ops.applicable import Applied
from tofu_tf.ops.registry import REGISTRY, OpEntry, Sample
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.machine import Link, Machine, imagined
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.rewrite.rewriting import rewrite
from tofu_tf.runtime.function import PlacedFunction
from tofu_tf.tdl import strategies

DEVICES = 8
CASES = [
    pytest.param(entry, sample, zlib.crc32(f"{name}{n}".encode()), id=f"{name}-{n}")
    for name, entry in REGISTRY.items()
    for n, sample in enumerate(entry.samples)
]
Cut = tuple[Applied, tuple[str | None, ...], tuple[int, ...]]


def legal_cuts(case: running.Case) -> list[Cut]:
    return [
        (applied, axes, factors)
        for applied in case.described.applied
        for axes, factors in running.cuts_of(applied)
        if math.prod(factors) <= DEVICES
        and strategies.is_legal(applied.description, axes, factors)
        and _writes_in_place(case, applied, axes)
    ]


def _writes_in_place(case: running.Case, applied: Applied, axes: tuple[str | None, ...]) -> bool:
    """Whether every variable written is written where some layout has it."""
    for write in applied.description.writes[len(case.node.outputs) - len(case.node.writes) :]:
        named = [None if d is None else d.axis for d in write.dims]
        if any(a is not None and a not in named for a in axes):
            return False
    return True


def graph_of(case: running.Case) -> Graph:
    """The sample's node with its inputs fed, constant, or a variable's value."""
    nodes: dict[str, Node] = {}
    variables, inputs = {}, []
    for i, x in enumerate(case.inputs):
        name, spec = f"in{i}", running.TensorSpec(x.shape, tf.as_dtype(x.dtype).name)
        op = PLACEHOLDER
        attrs = {}
        if i in case.described.constants:
            op = CONST
            attrs = {"value": running.attributes.encode(x, "tensor")}
        elif i in case.node.variables:
            op = VARIABLE
            variables[f"v{i}"] = Variable(f"v{i}", spec, name)
        else:
            inputs.append(name)
        nodes[name] = Node(name, op, (), (spec,), attrs)
    nodes["node"] = case.node
    own = len(case.node.outputs) - len(case.node.writes)
    effects = ("node",) if case.node.writes else ()
    outputs = tuple(Ref("node", o) for o in range(own))
    return Graph(nodes, tuple(inputs), outputs, variables, effects)


def plan_of(case: running.Case, graph: Graph, cut: Cut, rng: random.Random) -> Plan:
    """The cut, between layouts drawn at random; variables lie as they are written."""
    applied, axes, factors = cut
    devices = imagined(math.prod(factors)).devices
    machine = Machine(devices, factors, (Link(),) * len(factors))

    def drawn(shape: tuple[int, ...]) -> Layout:
        choices = [None, *range(len(shape))] if all(shape) else [None]
        return Layout(tuple(rng.choice(choices) for _ in factors))

    layouts = {}
    for node in graph:
        for ref in node.refs:
            layouts[ref] = Layout((None,) * len(factors))
            if node.op != CONST:
                layouts[ref] = drawn(graph.spec(ref).shape)
    own = len(case.node.outputs) - len(case.node.writes)
    for o, variable in enumerate(case.node.writes, start=own):
        dims = [d and d.axis for d in applied.description.writes[o].dims]
        cuts = tuple(None if a is None else dims.index(a) for a in axes)
        layouts[Ref("node", o)] = layouts[graph.variables[variable].ref] = Layout(cuts)
    return Plan(machine, layouts, {"node": Strategy(axes, body=applied.variant.name)}, "")


def check(case: running.Case, cut: Cut, seed: int) -> None:
    graph = graph_of(case)
    _, axes, factors = cut
    plan = plan_of(case, graph, cut, random.Random(seed))
    placed = rewrite(graph, plan)
    values = {f"in{i}": x for i, x in enumerate(case.inputs)}
    shards = []
    for shard in placed.shards:
        whole = values[graph.variables[shard.variable].node]
        with tf.device(plan.machine.devices[shard.worker]):
            shards.append(tf.Variable(whole[_index(shard.region)]))
    got = PlacedFunction(placed)(
        [values[name] for name in placed.feeds], [s.handle for s in shards]
    )
    found = [np.asarray(t) for t in got]
    own = len(found)
    for variable in case.node.writes:
        after = np.array(values[graph.variables[variable].node])
        for shard, part in zip(placed.shards, shards, strict=True):
            if shard.variable == variable:
                after[_index(shard.region)] = part.numpy()
        found.append(after)
    where = f"{case.node.op} {case.sample.inputs} cut along {axes} by {factors}"
    for o, (a, b) in enumerate(zip(found, case.outputs, strict=True)):
        if o not in case.sample.unspecified and (o >= own or b.size):
            running._compare(f"{where}, output {o}", a, b, case.sample.rtol)


def _index(region: object) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in region.bounds)


@pytest.mark.parametrize("entry, sample, seed", CASES)
def test_one_cut(entry: OpEntry, sample: Sample, seed: int) -> None:
    case = running.case_of(entry, sample)
    cuts = legal_cuts(case)
    if not cuts:
        assert all(not a.axes for a in case.described.applied) or case.node.writes
        return
    check(case, cuts[seed % len(cuts)], seed)


@pytest.mark.slow
@pytest.mark.parametrize("entry, sample, seed", CASES)
def test_every_cut(entry: OpEntry, sample: Sample, seed: int) -> None:
    case = running.case_of(entry, sample)
    for n, cut in enumerate(legal_cuts(case)):
        check(case, cut, seed + n)


def test_a_broken_body_is_found() -> None:
    """The check fails when a piece is wrong."""
    case = running.case_of(REGISTRY["MatMul"], REGISTRY["MatMul"].samples[0])
    wrong = dataclasses.replace(case, outputs=(case.outputs[0] * 1.001,))
    with pytest.raises(AssertionError):
        check(wrong, legal_cuts(case)[0], 0)
