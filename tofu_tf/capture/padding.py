"""What each op does with places that are padding: a rule an op.

A rule gives the node that takes another's place, or raises `Unknown` where padding would show.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.capture.folding import PLAIN
from tofu_tf.capture.padded import (
    Change,
    Found,
    Padding,
    Unknown,
    clamped_ids,
    const_of,
    node_of,
    rows_of,
    with_inputs,
)
from tofu_tf.graph.attributes import PADDED, attribute, encode
from tofu_tf.graph.ir import CONST, PADDED_UNIQUE, Node, Ref, TensorSpec
from tofu_tf.graph.registered import op_definition


def unique(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    ids = node.inputs[0]
    spec = padding.graph.spec(ids)
    outer = ""
    if found:
        outer = padding.only(found, "ids").unique
    elif not spec.is_static:
        raise Unknown("how many ids there are depends on data")
    shape = padding.shape(ids)
    if spec.dtype not in ("int32", "int64") or len(shape) != 1 or shape[0] == 0:
        raise Unknown(f"of {spec}: only vectors of int32 or int64 are padded")
    padding.places[node.name] = shape[0]
    outputs = (TensorSpec(shape, spec.dtype), TensorSpec(shape, node.outputs[1].dtype))
    attrs = {key: node.attrs[key] for key in ("T", "out_idx")}
    made = dataclasses.replace(node, op=PADDED_UNIQUE, outputs=outputs, attrs=attrs)
    about = {0: Found(node.name, "ids")}
    if outer:
        about[1] = Found(node.name, "places", of=outer)
    return Change(made, about, after=clamped_ids(padding, Ref(node.name), outputs[0]))


def elementwise(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    first = padding.only(found, "ids", "rows", *(["places"] if node.op == "Cast" else []))
    rank = len(node.outputs[0].shape)
    axes = {rank - len(padding.shape(node.inputs[i])) + f.axis for i, f in found.items()}
    axis = min(axes)
    if len(axes) != 1 or axis < 0:
        raise Unknown("distinct ids lie along several dimensions")
    for i, ref in enumerate(node.inputs):
        shape = padding.shape(ref)
        at = axis - (rank - len(shape))
        if -1 in shape or (i not in found and at >= 0 and shape[at] != 1):
            raise Unknown(f"input {i} has a size of its own along the distinct ids")
    kind = "rows"
    if node.op == "Cast" and node.outputs[0].dtype in ("int32", "int64"):
        kind = first.kind
    of = first.of if kind == "places" else ""
    owner = first.unique if kind == "places" else first.counted
    return rows_of(padding, node, Found(owner, kind, axis, of))


def size(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """Shape or Size."""
    first = padding.only(found, "ids", "rows", "places")
    dims = padding.shape(node.inputs[0])
    more = tuple(n + (d == first.axis) for d, n in enumerate(dims))
    dtype = tf.as_dtype(node.outputs[0].dtype).as_numpy_dtype
    count = math.prod if node.op == "Size" else tuple
    values = tuple(np.asarray(count(v), dtype) for v in (dims, more))
    return Change(node, {0: Found(first.counted, "size", values=values)})


def of_sizes(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """An op of shapes and constants, evaluated for both numbers of places."""
    owners = {f.unique for f in found.values()}
    if len(owners) > 1:
        raise Unknown("joins distinct ids of several vectors")
    values = []
    for n in range(2):
        operands = []
        for i, ref in enumerate(node.inputs):
            value = found[i].values[n] if i in found else padding.const(ref)
            if value is None:
                raise Unknown("takes the number of distinct ids")
            operands.append(value)
        values.append(_evaluated(node, operands))
    about = {0: Found(owners.pop(), "size", values=tuple(values))}
    if np.array_equal(values[0], values[1]):
        padding.constants[Ref(node.name)] = values[0]
        return Change(const_of(node.name, values[0], node.outputs[0].dtype), about)
    return Change(node, about)


def _evaluated(node: Node, operands: Sequence[np.ndarray]) -> np.ndarray:
    part = graph_pb2.GraphDef()
    for i, value in enumerate(operands):
        const = part.node.add(name=f"in{i}", op=CONST)
        for key, attr in const_of("", value, tf.as_dtype(value.dtype).name).attrs.items():
            const.attr[key].CopyFrom(attr)
    made = part.node.add(name="made", op=node.op, input=[f"in{i}" for i in range(len(operands))])
    for key, attr in node.attrs.items():
        made.attr[key].CopyFrom(attr)
    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        tf.graph_util.import_graph_def(part, name="")
        with tf.compat.v1.Session(graph=graph, config=PLAIN) as session:
            return np.asarray(session.run("made:0"))


def segments(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """A segment for each distinct id, or rows of distinct ids into segments by these ids."""
    data, ids, count = (found.get(i) for i in range(3))
    if count is not None:
        if count.kind != "size" or [int(v) for v in count.values] != [
            padding.places[count.unique] + n for n in range(2)
        ]:
            raise Unknown("makes another number of segments than there are distinct ids")
        if data is not None and ids is not None and ids.kind == "places":
            if ids.unique != count.unique or data.counted != ids.of or data.axis:
                raise Unknown("joins distinct ids of several vectors")
        elif data is not None or ids is not None:
            raise Unknown("distinct ids are no segments")
        number = const_of(
            padding.free(f"{node.name}/places"),
            padding.places[count.unique],
            padding.graph.spec(node.inputs[2]).dtype,
        )
        made = with_inputs(node, {2: Ref(number.name)})
        return rows_of(padding, made, Found(count.unique, "rows"), (number,))
    if data is None or ids is None or ids.kind != "ids" or len(padding.shape(node.inputs[1])) != 1:
        raise Unknown("segments that are no distinct ids")
    padding.only({0: data, 1: ids}, "ids", "rows")
    if data.axis:
        raise Unknown("distinct ids lie along another dimension")
    # segments of negative ids are left out
    return Change(node)


def gather(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """Rows of a table by distinct ids, or rows of distinct ids by places among them."""
    at = padding.const(node.inputs[2]) if node.op == "GatherV2" else 0
    if at is None or 2 in found or int(attribute(node, "batch_dims", 0)):
        raise Unknown("gathers in batches")
    rank = len(padding.graph.spec(node.inputs[0]).shape)
    axis = int(at) % rank
    table, ids = found.get(0), found.get(1)
    if table is None:
        assert ids is not None
        if ids.kind != "ids":
            raise Unknown("indices that are no distinct ids")
        if -1 in padding.shape(node.inputs[0]):
            raise Unknown("another size depends on data too")
        made = with_inputs(node, {1: padding.clamped[node.inputs[1]]})
        return rows_of(padding, made, Found(ids.unique, "rows", axis + ids.axis))
    if table.kind not in ("ids", "rows"):
        raise Unknown("gathers sizes")
    extra = len(padding.shape(node.inputs[1])) - 1
    if ids is not None:
        if ids.kind != "places" or ids.unique != table.counted or table.axis != axis:
            raise Unknown("indices that are no places of distinct ids")
        return rows_of(padding, node, Found(ids.of, "rows", axis + ids.axis))
    if -1 in padding.shape(node.inputs[1]):
        raise Unknown("another size depends on data too")
    if table.axis == axis:
        return Change(node)
    moved = table.axis + (extra if table.axis > axis else 0)
    return rows_of(padding, node, Found(table.unique, "rows", moved))


def gather_places(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """Rows by distinct ids, each a place of one dimension."""
    ids = found.get(1)
    shape = padding.shape(node.inputs[1])
    if set(found) != {1} or ids is None or ids.kind != "ids" or shape[1:] != (1,) or ids.axis:
        raise Unknown("places that are no distinct ids")
    made = with_inputs(node, {1: padding.clamped[node.inputs[1]]})
    return rows_of(padding, made, Found(ids.unique, "rows"))


def _lowest(dtype: str) -> float:
    found = tf.as_dtype(dtype)
    return found.min if found.is_integer else -math.inf


def _highest(dtype: str) -> float:
    found = tf.as_dtype(dtype)
    return found.max if found.is_integer else math.inf


NEUTRAL: Mapping[str, Callable[[str], float]] = {
    "Sum": lambda dtype: 0,
    "L2Loss": lambda dtype: 0,
    "Prod": lambda dtype: 1,
    "Max": _lowest,
    "Min": _highest,
    "All": lambda dtype: True,
    "Any": lambda dtype: False,
}


def reduction(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    if 0 not in found:
        raise Unknown("takes the number of distinct ids")
    rows = padding.only(found, "ids", "rows")
    spec = padding.static(padding.graph.spec(node.inputs[0]), rows)
    rank = len(spec.shape)
    if node.op == "L2Loss":
        over = list(range(rank))
    else:
        given = padding.const(node.inputs[1])
        if given is None:
            raise Unknown("reduces along axes that depend on data")
        over = [int(a) % rank for a in given.ravel()]
    if rows.axis not in over:
        gone = 0 if attribute(node, "keep_dims") else sum(a < rows.axis for a in over)
        return rows_of(padding, node, Found(rows.counted, "rows", rows.axis - gone))
    before = list(_masked(padding, node, rows, spec))
    return Change(with_inputs(node, {0: Ref(before[-1].name)}), before=tuple(before))


def _masked(padding: Padding, node: Node, rows: Found, spec: TensorSpec) -> Iterator[Node]:
    """Input 0 of a reduction with its neutral element for padding."""
    ids = Ref(rows.counted)
    (places,), dtype = padding.shape(ids), padding.graph.spec(ids).dtype
    zero = const_of(padding.free(f"{node.name}/zero"), 0, dtype)
    yield zero
    real = node_of(
        padding.free(f"{node.name}/real"),
        "GreaterEqual",
        (ids, Ref(zero.name)),
        TensorSpec((places,), "bool"),
        T=dtype,
    )
    yield real
    shape = (places, *[1] * (len(spec.shape) - rows.axis - 1))
    dims = const_of(padding.free(f"{node.name}/dims"), shape, "int32")
    yield dims
    mask = node_of(
        padding.free(f"{node.name}/mask"),
        "Reshape",
        (Ref(real.name), Ref(dims.name)),
        TensorSpec(shape, "bool"),
        T="bool",
        Tshape="int32",
    )
    yield mask
    other = const_of(padding.free(f"{node.name}/neutral"), NEUTRAL[node.op](spec.dtype), spec.dtype)
    yield other
    inputs = (Ref(mask.name), node.inputs[0], Ref(other.name))
    yield node_of(padding.free(f"{node.name}/masked"), "SelectV2", inputs, spec, T=spec.dtype)


def reshape(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """A shape in which the distinct ids keep a dimension of their own."""
    rows = found.get(0)
    if rows is None or rows.kind == "size":
        raise Unknown("takes the number of distinct ids")
    shape = padding.shape(node.inputs[0])
    if 1 in found:
        given = found[1].values
    else:
        value = padding.const(node.inputs[1])
        if value is None:
            raise Unknown("takes a shape that depends on data")
        given = (value, value)
    axis = rows.axis
    total = math.prod(shape)
    dims = [_resolved(v, total + n * total // shape[axis]) for n, v in enumerate(given)]
    places = shape[axis]
    for b, (less, more) in enumerate(zip(*dims, strict=True)):
        before, after = (math.prod(shape[:axis]), math.prod(shape[axis + 1 :]))
        if (
            (less, more) == (places, places + 1)
            and math.prod(dims[0][:b]) == before
            and math.prod(dims[0][b + 1 :]) == after
        ):
            break
    else:
        raise Unknown("distinct ids keep no dimension of their own")
    dtype = padding.graph.spec(node.inputs[1]).dtype
    to = const_of(padding.free(f"{node.name}/dims"), dims[0], dtype)
    spec = TensorSpec(tuple(dims[0]), node.outputs[0].dtype)
    made = dataclasses.replace(with_inputs(node, {1: Ref(to.name)}), outputs=(spec,))
    return rows_of(padding, made, dataclasses.replace(rows, axis=b), (to,))


def _resolved(dims: np.ndarray, total: int) -> list[int]:
    found = [int(n) for n in dims]
    known = math.prod(n for n in found if n != -1)
    return [total // max(known, 1) if n == -1 else n for n in found]


def expand(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    rows = padding.only(found, "ids", "rows", "places")
    at = padding.const(node.inputs[1])
    if at is None or 1 in found:
        raise Unknown("takes an axis that depends on data")
    place = int(at) % len(node.outputs[0].shape)
    moved = rows.axis + (place <= rows.axis)
    return rows_of(padding, node, dataclasses.replace(rows, axis=moved))


def strided_slice(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """A slice that takes all distinct ids."""
    if set(found) != {0}:
        raise Unknown("takes the number of distinct ids")
    rows = padding.only(found, "ids", "rows")
    strides = padding.const(node.inputs[3])
    masks = {m: int(attribute(node, f"{m}_mask")) for m in ("begin", "end", "new_axis")}
    shrink = int(attribute(node, "shrink_axis_mask"))
    if strides is None or int(attribute(node, "ellipsis_mask")):
        raise Unknown("a slice that depends on data, or with an ellipsis")
    d = at = 0  # dimension of the input, of the result
    for n, stride in enumerate(strides.tolist()):
        if masks["new_axis"] >> n & 1:
            at += 1
            continue
        if d == rows.axis:
            if stride != 1 or not (masks["begin"] & masks["end"] & ~shrink) >> n & 1:
                raise Unknown("takes some of the distinct ids by their places")
            break
        at += not shrink >> n & 1
        d += 1
    return rows_of(padding, node, dataclasses.replace(rows, axis=at + rows.axis - d))


def scatter(padding: Padding, node: Node, found: Mapping[int, Found]) -> Change:
    """Rows into a variable by distinct ids: those of negative ones are left out."""
    names = [a.name for a in op_definition(node.op).input_arg]  # type: ignore[union-attr]
    ids = names.index("indices")
    rows = names.index("updates" if "updates" in names else "grad")
    if set(found) != {ids, rows} or found[ids].kind != "ids":
        raise Unknown("writes rows by what are no distinct ids")
    padding.only(found, "ids", "rows")
    shape = padding.shape(node.inputs[ids])
    wanted = (shape[0], 1) if "Nd" in node.op else (shape[0],)
    if found[ids].axis or found[rows].axis or shape != wanted:
        raise Unknown("distinct ids lie along another dimension")
    return Change(dataclasses.replace(node, attrs={**node.attrs, PADDED: encode(True)}))
