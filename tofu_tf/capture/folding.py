"""Shape arithmetic -> constants, evaluated by TensorFlow's own kernels; nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, tensor_pb2

from tofu_tf.capture.shaping import imported, is_static, name_of, static_shapes
from tofu_tf.capture.tensorflow_private import handle_spec
from tofu_tf.graph.importing import Shapes
from tofu_tf.graph.ir import CONST, Ref, TensorSpec
from tofu_tf.graph.state import CARRIERS, is_stateful

SIZE_LIMIT = 1 << 20  # bytes; a larger constant is cheaper to compute on each device than to send
# Bytes of constants whose function is evaluated though the size of what it yields is unknown: axes
# that were broadcast, places of what is true.
_SMALL = 1 << 14

OF_SHAPE = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})
# Pure, yet no function of their inputs alone, or not to be taken out of where they stand.
NEVER = frozenset(
    {
        "NoOp",
        "Switch",
        "RefSwitch",
        "Merge",
        "RefMerge",
        "Enter",
        "Exit",
        "NextIteration",
        "LoopCond",
        "Placeholder",
    }
    | {
        "PlaceholderWithDefault",
        "If",
        "StatelessIf",
        "While",
        "StatelessWhile",
        "Case",
        "StatelessCase",
    }
    | {
        "PartitionedCall",
        "StatefulPartitionedCall",
        "GuaranteeConst",
        "CheckNumerics",
        "_Arg",
        "_Retval",
    }
)
_NO_CONSTANT = frozenset({"resource", "variant"})


def fold(
    graph_def: graph_pb2.GraphDef,
    roots: Iterable[str],
    importer: Callable[[graph_pb2.GraphDef], tf.Graph] = imported,
    size_limit: int = SIZE_LIMIT,
) -> tuple[graph_pb2.GraphDef, Shapes]:
    """`graph_def` with every computed constant up to `size_limit` bytes as a Const; all shapes.

    Shape, ShapeN, Size, Rank and VariableShape of static tensors are constants, and so is every
    pure op of constants. A Const keeps the control inputs that its sources had, so that one inside
    a branch stays there. Repeated while a new constant makes another shape known. `roots` are the
    fed, fetched and effectful nodes: they keep their names, and what they do not need goes.
    """
    kept = frozenset(roots)
    graph_def = _needed(graph_def, kept)
    while True:
        graph = importer(graph_def)
        shapes = static_shapes(graph)
        folded, more = _fold_once(graph_def, kept, graph, shapes, size_limit)
        if not more:
            return graph_def, shapes
        graph_def = folded
        if is_static(spec for specs in shapes.values() for spec in specs):
            return graph_def, {**shapes, **more}


def _needed(graph_def: graph_pb2.GraphDef, roots: frozenset[str]) -> graph_pb2.GraphDef:
    """`graph_def` without dead nodes: a tenth of a training step, with shapes nobody asks for."""
    nodes = {node.name: node for node in graph_def.node}
    found: set[str] = set()
    stack = [root for root in roots if root in nodes]
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        for text in nodes[name].input:
            ref = _data(text)
            source = text[1:] if ref is None else ref.node
            # A source that is not there stays an edge that importing refuses.
            if source in nodes:
                stack.append(source)
    result = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(node for node in graph_def.node if node.name in found)
    return result


def _fold_once(
    graph_def: graph_pb2.GraphDef,
    roots: frozenset[str],
    graph: tf.Graph,
    shapes: Shapes,
    size_limit: int,
) -> tuple[graph_pb2.GraphDef, Shapes]:
    """One round: the GraphDef and the specs of its new Consts."""
    nodes = {node.name: node for node in graph_def.node}
    constant = _constant_nodes(graph, nodes, shapes, size_limit)
    wanted: dict[Ref, None] = {}
    for node in graph_def.node:
        if node.name not in constant or node.name in roots:
            for ref in _operands(node, constant, nodes):
                if nodes[ref.node].op != CONST:
                    wanted[ref] = None
    fetched = [
        n
        for n in sorted(roots & constant)
        if nodes[_carried(Ref(n), nodes).node].op != CONST and len(shapes[n]) == 1
    ]
    wanted |= dict.fromkeys(Ref(name) for name in fetched)
    if not wanted:
        return graph_def, {}
    values = _evaluate(nodes, constant, graph, shapes, list(wanted))
    names = {ref: ref.node if ref.node in fetched else _fresh(ref, nodes) for ref in values}
    result = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    waits: dict[str, tuple[str, ...]] = {}
    for ref, value in values.items():
        const = result.node.add(name=names[ref], op=CONST)
        dtype = tf.dtypes.as_dtype(shapes[ref.node][ref.index].dtype)
        const.attr["dtype"].type = dtype.as_datatype_enum
        const.attr["value"].tensor.CopyFrom(value)
        const.input.extend(f"^{c}" for c in _controls(ref.node, nodes, waits))
    for node in graph_def.node:
        if node.name in fetched:
            continue
        copied = result.node.add()
        copied.CopyFrom(node)
        if node.name not in constant or node.name in roots:
            operands = iter(_operands(node, constant, nodes))
            for i, text in enumerate(node.input):
                operand = _data(text)
                if operand is not None and operand.node in constant:
                    copied.input[i] = names.get(next(operands), text)
    return result, {
        names[ref]: (
            TensorSpec(
                tuple(d.size for d in v.tensor_shape.dim), shapes[ref.node][ref.index].dtype
            ),
        )
        for ref, v in values.items()
    }


def _operands(
    node: node_def_pb2.NodeDef, constant: set[str], nodes: Mapping[str, node_def_pb2.NodeDef]
) -> list[Ref]:
    """Where the constant operands of `node` are made."""
    refs = [_data(text) for text in node.input]
    return [_carried(r, nodes) for r in refs if r is not None and r.node in constant]


def _data(text: str) -> Ref | None:
    if text.startswith("^"):
        return None
    name, colon, index = text.rpartition(":")
    return Ref(name, int(index)) if colon else Ref(text)


def _carried(ref: Ref, nodes: Mapping[str, node_def_pb2.NodeDef]) -> Ref:
    """Where a value passed on by ops like Identity comes from: a weight's Const stays one node."""
    while nodes[ref.node].op in CARRIERS:
        source = _data(nodes[ref.node].input[ref.index])
        if source is None:
            break
        ref = source
    return ref


def _fresh(ref: Ref, nodes: Mapping[str, node_def_pb2.NodeDef]) -> str:
    """``x`` -> ``x/folded0`` for its output 0."""
    name = f"{ref.node}/folded{ref.index}"
    while name in nodes:
        name += "_"
    return name


def _constant_nodes(
    graph: tf.Graph, nodes: Mapping[str, node_def_pb2.NodeDef], shapes: Shapes, size_limit: int
) -> set[str]:
    found: set[str] = set()
    for op in graph.get_operations():  # importing made them inputs first
        name = name_of(op)
        if name not in nodes:
            continue
        if op.type == CONST or (op.type in OF_SHAPE and _has_shape(op, shapes)):
            found.add(name)
            continue
        specs = shapes[name]
        if (
            op.inputs
            and specs
            and op.type not in NEVER
            and not is_stateful(op.type)
            and all(name_of(t.op) in found for t in op.inputs)
            and (is_static(specs) or _are_small(op, shapes))
            and all(s.dtype not in _NO_CONSTANT and s.nbytes <= size_limit for s in specs)
        ):
            found.add(name)
    return found


def _are_small(op: tf.Operation, shapes: Shapes) -> bool:
    """Whether the op's inputs have sizes, small ones."""
    specs = [shapes[name_of(t.op)][t.value_index] for t in op.inputs]
    return is_static(specs) and sum(s.nbytes for s in specs) <= _SMALL


def _has_shape(op: tf.Operation, shapes: Shapes) -> bool:
    if op.type == "VariableShape":
        spec = handle_spec(op.inputs[0])
        return spec is not None and spec[0].is_fully_defined()
    if op.type == "Rank":
        return op.inputs[0].shape.rank is not None
    return is_static(shapes[name_of(t.op)][t.value_index] for t in op.inputs)


def _evaluate(
    nodes: Mapping[str, node_def_pb2.NodeDef],
    constant: set[str],
    graph: tf.Graph,
    shapes: Shapes,
    wanted: list[Ref],
) -> dict[Ref, tensor_pb2.TensorProto]:
    """The value of each `wanted` tensor as a TensorProto, from one Session run."""
    part = graph_pb2.GraphDef()
    needed: set[str] = set()
    stack = [ref.node for ref in wanted]
    rename: dict[Ref, str] = {}
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        needed.add(name)
        node = nodes[name]
        if node.op in OF_SHAPE:
            for i, value in enumerate(_shape_values(graph.get_operation_by_name(name))):
                spec = shapes[name][i]
                const = part.node.add(name=_fresh(Ref(name, i), nodes), op=CONST)
                const.attr["dtype"].type = tf.dtypes.as_dtype(spec.dtype).as_datatype_enum
                const.attr["value"].tensor.CopyFrom(
                    tf.make_tensor_proto(value, tf.dtypes.as_dtype(spec.dtype), spec.shape)
                )
                rename[Ref(name, i)] = const.name
            continue
        copied = part.node.add()
        copied.CopyFrom(node)
        copied.attr.pop("_class", None)
        copied.device = ""
        del copied.input[:]
        copied.input.extend(text for text in node.input if not text.startswith("^"))
        stack += [ref.node for text in copied.input if (ref := _data(text)) is not None]
    for node in part.node:
        for i, text in enumerate(node.input):
            ref = _data(text)
            if ref in rename:
                node.input[i] = rename[ref]
    with tf.Graph().as_default() as evaluated, tf.device("/CPU:0"):
        tf.graph_util.import_graph_def(part, name="")
        fetches = [rename[r] + ":0" if r in rename else str(r) for r in wanted]
        with tf.compat.v1.Session(graph=evaluated, config=PLAIN) as session:
            values = session.run(fetches)
    return {
        ref: _proto(value, shapes[ref.node][ref.index].dtype)
        for ref, value in zip(wanted, values, strict=True)
    }


def _proto(value: np.ndarray, dtype: str) -> tensor_pb2.TensorProto:
    return tf.make_tensor_proto(value, tf.dtypes.as_dtype(dtype), np.shape(value))


def _session_config() -> tf.compat.v1.ConfigProto:
    """A session that runs each kernel as written, on the host only."""
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return config


PLAIN = _session_config()


def _shape_values(op: tf.Operation) -> list[object]:
    if op.type == "VariableShape":
        spec = handle_spec(op.inputs[0])
        assert spec is not None  # _has_shape looked
        return [spec[0].as_list()]
    if op.type == "Rank":
        return [op.inputs[0].shape.rank]
    if op.type == "Size":
        return [op.inputs[0].shape.num_elements()]
    return [t.shape.as_list() for t in op.inputs]


def _controls(
    name: str, nodes: Mapping[str, node_def_pb2.NodeDef], memo: dict[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """The control inputs of `name` and of all that its value comes from."""
    stack = [name]
    while stack:
        top = stack[-1]
        sources = [r.node for text in nodes[top].input if (r := _data(text)) is not None]
        # Only shapes were taken from the inputs of a shape op: its value does not wait for them.
        sources = [] if nodes[top].op in OF_SHAPE else sources
        missing = [s for s in sources if s not in memo]
        if missing and top not in memo:
            stack += missing
            continue
        stack.pop()
        found = dict.fromkeys(text[1:] for text in nodes[top].input if text.startswith("^"))
        for source in sources:
            found |= dict.fromkeys(memo[source])
        memo[top] = tuple(found)
    return memo[name]
