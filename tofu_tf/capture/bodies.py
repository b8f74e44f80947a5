"""A function of a GraphDef's library -> its nodes, named as in a GraphDef, calls inlined."""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Iterable, Iterator, Mapping

from tensorflow.core.framework import function_pb2, graph_pb2, op_def_pb2, versions_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.capture.inlining import CALLS, inline
from tofu_tf.errors import GraphError
from tofu_tf.graph.functions import Functions
from tofu_tf.graph.registered import op_definition

_RESULT = "tofu_result/"


@dataclasses.dataclass(frozen=True)
class Body:
    """What a function does.

    `nodes`: sources first, arguments left out. `arguments`: the names that stand for them.
    `outputs`: tensors as ``node:1``. `functions`: those that the nodes may name.
    """

    nodes: tuple[NodeDef, ...]
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: Functions


def body_of(
    function: function_pb2.FunctionDef, functions: Functions, versions: versions_pb2.VersionDef
) -> Body:
    """The body of `function`, which may name some of `functions`; conditionals and loops stay."""
    signature = function.signature
    names = {arg.name: f"{arg.name}:0" for arg in signature.input_arg}
    for node in function.node_def:
        names |= _tensors(node, functions)
    graph_def = graph_pb2.GraphDef(versions=versions)
    for arg in signature.input_arg:
        made = graph_def.node.add(name=arg.name, op="Placeholder")
        made.attr["dtype"].type = arg.type
        made.attr["shape"].shape.unknown_rank = True  # Grappler wants one
    for node in function.node_def:
        copied = graph_def.node.add()
        copied.CopyFrom(node)
        for i, text in enumerate(node.input):
            copied.input[i] = text if text.startswith("^") else _known(text, names, node.name)
    outputs = [_known(function.ret[o.name], names, signature.name) for o in signature.output_arg]
    if any(node.op in CALLS or node.op in functions for node in function.node_def):
        graph_def.library.function.extend(functions.values())
        graph_def, outputs = _inlined(graph_def, function, outputs)
        functions = {f.signature.name: f for f in graph_def.library.function}
    arguments = tuple(arg.name for arg in signature.input_arg)
    nodes = [node for node in sources_first(graph_def.node) if node.name not in arguments]
    return Body(tuple(nodes), arguments, tuple(outputs), functions)


def _inlined(
    graph_def: graph_pb2.GraphDef, function: function_pb2.FunctionDef, outputs: list[str]
) -> tuple[graph_pb2.GraphDef, list[str]]:
    """Without calls. Identities stand for the outputs: a call that is asked for by name stays."""
    kept = [arg.name for arg in function.signature.input_arg]
    found = []
    for i, (ref, arg) in enumerate(zip(outputs, function.signature.output_arg, strict=True)):
        made = graph_def.node.add(name=f"{_RESULT}{i}", op="Identity", input=[ref])
        made.attr["T"].type = arg.type
        found.append(f"{made.name}:0")
        kept.append(made.name)
    waits = [f"^{name}" for name in function.control_ret.values()]
    graph_def.node.add(name=f"{_RESULT}effects", op="NoOp", input=waits)
    return inline(graph_def, [*kept, f"{_RESULT}effects"]), found


def sources_first(nodes: Iterable[NodeDef]) -> list[NodeDef]:
    """The nodes, each after those that it takes something of or waits for."""
    named = {node.name: node for node in nodes}
    sources = {
        name: [text.removeprefix("^").partition(":")[0] for text in node.input]
        for name, node in named.items()
    }
    try:
        order = list(graphlib.TopologicalSorter(sources).static_order())
    except graphlib.CycleError:  # importing says which nodes are on it
        order = list(named)
    return [named[name] for name in order]


def _known(text: str, names: Mapping[str, str], where: str) -> str:
    if text not in names:
        raise GraphError(
            where, f"an edge from {text}, which is not there", "", "export the graph again, whole"
        )
    return names[text]


def _tensors(node: NodeDef, functions: Functions) -> dict[str, str]:
    """``node:output_arg:1`` -> ``node:4`` for every output."""
    called = functions.get(node.op)
    definition = called.signature if called is not None else op_definition(node.op)
    if definition is None:
        raise GraphError(
            f"{node.name} ({node.op})",
            "the installed TensorFlow does not know this op",
            "registered ops",
            "load the library that registers it (tf.load_op_library)",
        )
    found: dict[str, str] = {}
    for arg, count in _output_counts(node, definition):
        for i in range(count):
            found[f"{node.name}:{arg}:{i}"] = f"{node.name}:{len(found)}"
    return found


def _output_counts(node: NodeDef, definition: op_def_pb2.OpDef) -> Iterator[tuple[str, int]]:
    defaults = {a.name: a.default_value for a in definition.attr}
    for arg in definition.output_arg:
        many = arg.number_attr or arg.type_list_attr
        if not many:
            yield arg.name, 1
            continue
        value = node.attr[many] if many in node.attr else defaults[many]
        yield arg.name, value.i if arg.number_attr else len(value.list.type)
