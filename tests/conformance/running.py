"""Runs one sample of a registered op whole and in pieces, with TensorFlow's kernels, and compares.

The pieces are made by the op's bodies; here an emitted node runs at once (`Eager`), under the rules
of a NodeDef: every attribute without a default is given, names are unique, constants are arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2
from tensorflow.python.eager import execute

from tofu_tf.graph import attributes, state
from tofu_tf.graph.ir import CONST, PADDED_UNIQUE, PLACEHOLDER, Graph, Node, Ref, TensorSpec
from tofu_tf.graph.registered import attribute_kinds, op_definition
from tofu_tf.ops.applicable import Applied, Described, Describing
from tofu_tf.ops.registry import OpEntry, Piece, Sample
from tofu_tf.tdl import strategies
from tofu_tf.tdl.regions import Region, Regions

# Relative tolerance by dtype: a sum in another order, over some dozens of terms.
TOLERANCES = {
    "float64": 1e-11,
    "complex128": 1e-11,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 1e-2,
    "bfloat16": 8e-2,
}
REDUCERS = {"Sum": np.add, "Prod": np.multiply, "Max": np.maximum, "Min": np.minimum}


class Eager:
    """An Emitter that runs each node when it is added; `tensors` holds all by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self._parts: set[str] = set()

    def give(self, tensor: Any) -> str:
        """The name of a tensor (or variable handle) that is there already."""
        name = f"given{len(self.tensors)}:0"
        self.tensors[name] = tensor
        return name

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        part: str = "",
        outputs: int = 1,
    ) -> list[str]:
        self._once(part)
        found = run(op, [self.tensors[i] for i in inputs], attrs or {})
        assert len(found) == outputs, f"{op} has {len(found)} outputs, {outputs} were asked for"
        names = [f"node{'/' if part else ''}{part}:{i}" for i in range(outputs)]
        self.tensors.update(zip(names, found, strict=True))
        return names

    def const(self, value: np.ndarray, part: str) -> str:
        self._once(part)
        name = f"node/{part}:0"
        self.tensors[name] = tf.constant(value)
        return name

    def _once(self, part: str) -> None:
        assert part not in self._parts, f"two nodes of one piece are called {part!r}"
        self._parts.add(part)


def run(op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """The outputs of one node, as TensorFlow makes them from a NodeDef with these attributes."""
    kinds = attribute_kinds(op)
    assert kinds or op_definition(op) is not None, f"no op is called {op}"
    unknown = set(attrs) - set(kinds)
    assert not unknown, f"{op} has no attributes {sorted(unknown)}"
    definition = op_definition(op)
    needed = {a.name for a in definition.attr if not a.HasField("default_value")}
    assert needed <= set(attrs), f"{op} needs attributes {sorted(needed - set(attrs))}"
    encoded = {name: _encoded(value, kinds[name]) for name, value in attrs.items()}
    flat: list[Any] = []
    for name, attr in encoded.items():
        flat += [name, _eager_attribute(attr, kinds[name])]
    return list(
        execute.execute(op, _output_count(op, encoded), list(inputs), tuple(flat), _context())
    )


def _encoded(value: Any, kind: str) -> attr_value_pb2.AttrValue:
    return value if isinstance(value, attr_value_pb2.AttrValue) else attributes.encode(value, kind)


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _eager_attribute(attr: attr_value_pb2.AttrValue, kind: str) -> Any:
    value = attributes.decode(attr)
    if kind == "type":
        return attr.type
    if kind == "list(type)":
        return list(attr.list.type)
    if kind == "string":
        return attr.s
    if kind == "list(shape)":
        return [tf.TensorShape(s) for s in value]
    if kind == "shape":
        return tf.TensorShape(value)
    if kind == "tensor":
        return attr.tensor
    return list(value) if isinstance(value, tuple) else value


def _output_count(op: str, attrs: Mapping[str, attr_value_pb2.AttrValue]) -> int:
    count = 0
    for arg in op_definition(op).output_arg:
        if arg.number_attr:
            count += attrs[arg.number_attr].i
        elif arg.type_list_attr:
            count += len(attrs[arg.type_list_attr].list.type)
        else:
            count += 1
    return count


@dataclasses.dataclass(frozen=True)
class Case:
    """A sample as a node of a graph, its inputs as arrays, and the outputs of the whole op."""

    sample: Sample
    node: Node
    described: Described
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


def _padded_unique(
    ids: np.ndarray, attrs: Mapping[str, attr_value_pb2.AttrValue]
) -> tuple[np.ndarray, ...]:
    distinct = list(dict.fromkeys(ids.tolist()))
    padded = np.asarray(distinct + [-1] * (len(ids) - len(distinct)), ids.dtype)
    places = [distinct.index(i) for i in ids.tolist()]
    return padded, np.asarray(places, attributes.decode(attrs["out_idx"]))


# Ops that TensorFlow has not: the op whose attributes they have, and what they yield.
OURS = {PADDED_UNIQUE: ("Unique", _padded_unique)}


def case_of(entry: OpEntry, sample: Sample) -> Case:
    """The sample with random inputs, run whole."""
    random = np.random.default_rng(7)
    inputs = tuple(_data(i, sample, random) for i in sample.inputs)
    specs = [TensorSpec(x.shape, tf.as_dtype(x.dtype).name) for x in inputs]
    name, whole = OURS.get(entry.name, (entry.name, None))
    attrs = _attributes(name, specs, sample.attrs)
    handles = _handle_positions(name)
    written = state.written_operands(node_def_pb2.NodeDef(op=name), handles)
    outputs = whole(*inputs, attrs) if whole else _whole(name, inputs, attrs, handles, written)
    constants = {i % len(inputs) for i in entry.constants}
    nodes = {}
    for i, (x, spec) in enumerate(zip(inputs, specs, strict=True)):
        if i in constants:
            value = {"value": attributes.encode(x, "tensor")}
            nodes[f"in{i}"] = Node(f"in{i}", CONST, (), (spec,), value)
        else:
            nodes[f"in{i}"] = Node(f"in{i}", PLACEHOLDER, (), (spec,), {})
    node = Node(
        "node",
        entry.name,
        tuple(Ref(f"in{i}") for i in range(len(inputs))),
        tuple(TensorSpec(y.shape, tf.as_dtype(y.dtype).name) for y in outputs),
        attrs,
        variables={i: f"v{i}" for i in handles},
        writes=tuple(f"v{i}" for i in written),
    )
    nodes["node"] = node
    graph = Graph(nodes, (), (), {})
    described = Describing(graph)(node)
    assert described is not None
    return Case(sample, node, described, inputs, outputs)


def _data(given: Any, sample: Sample, random: np.random.Generator) -> np.ndarray:
    if isinstance(given, np.ndarray | np.generic):
        return np.asarray(given)
    shape, name = given
    dtype = tf.as_dtype(name).as_numpy_dtype
    if name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if name.startswith(("int", "uint")):
        low = max(0, int(sample.low)) if name.startswith("uint") else int(sample.low)
        return random.integers(low, int(sample.high) + 1, shape).astype(dtype)
    if name.startswith("complex"):
        parts = random.uniform(sample.low, sample.high, (2, *shape))
        return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)
    return np.asarray(random.uniform(sample.low, sample.high, shape)).astype(dtype)


def _attributes(
    op: str, specs: Sequence[TensorSpec], given: Mapping[str, Any]
) -> dict[str, attr_value_pb2.AttrValue]:
    """The node's attributes: those given, those that follow from the inputs, the defaults."""
    kinds = attribute_kinds(op)
    found: dict[str, Any] = {}
    position = 0
    args = list(op_definition(op).input_arg)
    for n, arg in enumerate(args):
        count = 1
        if arg.number_attr or arg.type_list_attr:
            count = len(specs) - position - (len(args) - n - 1)
        if arg.number_attr:
            found[arg.number_attr] = count
        if arg.type_list_attr:
            found[arg.type_list_attr] = tuple(s.dtype for s in specs[position : position + count])
        if arg.type_attr:
            found[arg.type_attr] = specs[position].dtype
        position += count
    if "dtype" in kinds and "dtype" not in found and _handle_positions(op):
        found["dtype"] = specs[0].dtype
    if "T" in kinds and "T" not in found and _handle_positions(op):
        found["T"] = specs[0].dtype
    found |= given
    return attributes.complete(
        op, {name: _encoded(value, kinds[name]) for name, value in found.items()}
    )


def _handle_positions(op: str) -> tuple[int, ...]:
    args = op_definition(op).input_arg
    return tuple(i for i, a in enumerate(args) if a.type == tf.resource.as_datatype_enum)


def _whole(
    op: str,
    inputs: Sequence[np.ndarray],
    attrs: Mapping[str, Any],
    handles: Sequence[int],
    written: Sequence[int],
) -> tuple[np.ndarray, ...]:
    variables = {i: tf.Variable(inputs[i]) for i in handles}
    tensors = [
        variables[i].handle if i in handles else tf.constant(x) for i, x in enumerate(inputs)
    ]
    own = run(op, tensors, attrs)
    return tuple(np.asarray(y) for y in (*own, *(variables[i].read_value() for i in written)))


def cuts_of(applied: Applied) -> Iterator[tuple[tuple[str | None, ...], tuple[int, ...]]]:
    """Axes and factors to try: each axis by 2, by 3, into more parts than it has; pairs."""
    axes = applied.axes
    for axis in axes:
        yield (axis,), (2,)
        yield (axis,), (3,)
        extent = applied.description.extents[axis]
        if extent < 6:
            yield (axis,), (extent + 1,)
    for pair in itertools.combinations_with_replacement(axes, 2):
        yield pair, (2, 2)
    if axes:
        yield (None, axes[0]), (2, 2)
    else:
        yield (None,), (1,)


def check_axes(case: Case) -> None:
    """The axes that the descriptions yield are those that the sample expects."""
    found = {a.variant.name: set(a.axes) for a in case.described.applied}
    expected = {name: set(axes) for name, axes in case.sample.axes.items()}
    assert found == expected, f"{case.node.op} yields {found}, the sample expects {expected}"


def check_pieces(case: Case) -> int:
    """How many cuts were legal; every variant under each of them gave the whole op's outputs."""
    legal = 0
    for applied in case.described.applied:
        for axes, factors in cuts_of(applied):
            if not strategies.is_legal(applied.description, axes, factors):
                continue
            legal += 1
            check_cut(case, applied, axes, factors)
    return legal


def check_cut(
    case: Case, applied: Applied, axes: tuple[str | None, ...], factors: tuple[int, ...]
) -> None:
    """One variant under one cut gives the whole op's outputs."""
    where = f"{case.node.op} {case.sample.inputs} cut along {axes} by {factors}"
    for o, (found, whole) in enumerate(
        zip(_in_pieces(case, applied, axes, factors, where), case.outputs, strict=True)
    ):
        if o not in case.sample.unspecified:
            _compare(f"{where}, output {o}", found, whole, case.sample.rtol)


def _compare(where: str, found: np.ndarray, whole: np.ndarray, rtol: float) -> None:
    name = tf.as_dtype(whole.dtype).name
    if name not in TOLERANCES:
        np.testing.assert_array_equal(found, whole, where)
        return
    rtol = rtol or TOLERANCES[name]
    wide = np.complex128 if np.issubdtype(whole.dtype, np.complexfloating) else np.float64
    a, b = np.asarray(found).astype(wide), np.asarray(whole).astype(wide)
    finite = np.abs(b[np.isfinite(b)])
    # sums cancel: errors are relative to the largest element, not to each
    atol = rtol * float(np.max(finite, initial=0.0))
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=where)


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor)


def _in_pieces(
    case: Case,
    applied: Applied,
    axes: Sequence[str | None],
    factors: tuple[int, ...],
    where: str,
) -> list[np.ndarray]:
    """The outputs put together from all workers' pieces."""
    work = strategies.work_of(applied.description, axes, factors)
    node = case.node
    own = len(node.outputs) - len(node.writes)
    workers = [w for w in range(len(work.boxes.present)) if work.boxes.present[w]]
    emitters = {w: Eager() for w in workers}
    shards: dict[tuple[int, str], tf.Variable] = {}
    started: dict[int, Any] = {}
    for w in workers:
        emit = emitters[w]
        regions: list[Region | None] = []
        names: list[str] = []
        for i, x in enumerate(case.inputs):
            region = None if i in case.described.constants else work.reads[i][w]
            name = ""
            if i in node.variables and node.variables[i] in node.writes:
                shard_region = work.writes[own + node.writes.index(node.variables[i])][w]
                assert region in (None, shard_region), f"{where}: reads another part than it writes"
                assert shard_region is not None
                shard = tf.Variable(_part(x, shard_region))
                shards[w, node.variables[i]] = shard
                name = emit.give(shard.handle)
            elif region is not None:
                name = emit.give(tf.constant(_part(x, region)))
            regions.append(region)
            names.append(name)
        writes = tuple(r.box(w) for r in work.writes)
        for r, spec in zip(writes, node.outputs, strict=True):
            assert r.size or not spec.size, f"{where}: worker {w} writes nothing"
        piece = Piece(
            node,
            work.boxes.box(w),
            applied.description.extents,
            tuple(TensorSpec(x.shape, tf.as_dtype(x.dtype).name) for x in case.inputs),
            tuple(regions),
            writes,
            tuple(names),
            case.described.constants,
            case.described.attributes,
        )
        started[w] = applied.variant.body(emit, piece)
    returned = _lock_step(started, emitters, work, where)
    outputs = []
    for o, spec in enumerate(node.outputs):
        tensors = {}
        for w in workers:
            if o < own:
                tensors[w] = _array(emitters[w].tensors[returned[w][o]])
            else:
                tensors[w] = _array(shards[w, node.writes[o - own]].read_value())
        outputs.append(
            _assemble(
                tensors,
                work.writes[o],
                work.partials[o],
                work.reducers[o],
                spec,
                f"{where}, output {o}",
            )
        )
    return outputs


def _part(whole: np.ndarray, region: Region) -> np.ndarray:
    return np.asarray(whole[tuple(slice(lo, hi) for lo, hi in region.bounds)])


def _lock_step(
    started: Mapping[int, Any], emitters: Mapping[int, Eager], work: strategies.Work, where: str
) -> dict[int, list[str]]:
    """What every worker's body returns; internal partials are summed where all have yielded."""
    if all(isinstance(b, list) for b in started.values()):
        return dict(started)
    running = dict(started)
    returned: dict[int, list[str]] = {}
    replies: dict[int, str | None] = dict.fromkeys(running)
    for n in itertools.count():
        yielded: dict[int, str] = {}
        for w, body in running.items():
            try:
                yielded[w] = body.send(replies[w])
            except StopIteration as end:
                returned[w] = end.value
        if not yielded:
            return returned
        assert not returned, f"{where}: some workers reduce and some do not"
        sums: dict[Region, dict[int, np.ndarray]] = {}
        for w, name in yielded.items():
            region = work.internal_writes[n][w]
            tensor = _array(emitters[w].tensors[name])
            assert region is not None
            assert tensor.shape == region.shape, (
                f"{where}: internal {n} is {tensor.shape}, not {region}"
            )
            sums.setdefault(region, {})[int(work.internal_partials[n][w])] = tensor
        replies = {
            w: emitters[w].give(tf.constant(sum(sums[work.internal_writes[n][w]].values())))
            for w in yielded
        }
    return returned


def _assemble(
    tensors: Mapping[int, np.ndarray],
    regions: Regions,
    partials: np.ndarray,
    reducer: str | None,
    spec: TensorSpec,
    where: str,
) -> np.ndarray:
    """One output from the workers' tensors: regions joined, partial results reduced."""
    whole: dict[int, np.ndarray] = {}
    covered: dict[int, np.ndarray] = {}
    for w, tensor in tensors.items():
        region = regions.box(w)
        p = int(partials[w])
        assert tensor.shape == region.shape, (
            f"{where}: worker {w} makes {tensor.shape}, not {region}"
        )
        assert tf.as_dtype(tensor.dtype).name == spec.dtype, (
            f"{where}: {tensor.dtype}, not {spec.dtype}"
        )
        at = tuple(slice(lo, hi) for lo, hi in region.bounds)
        whole.setdefault(p, np.zeros(spec.shape, tensor.dtype))[at] = tensor
        covered.setdefault(p, np.zeros(spec.shape, bool))[at] = True
    assert all(c.all() for c in covered.values()), f"{where}: elements that nobody writes"
    if len(whole) == 1:
        return next(iter(whole.values()))
    assert reducer is not None, f"{where}: partial results and no reducer"
    return functools.reduce(REDUCERS[reducer], [whole[p] for p in sorted(whole)])
