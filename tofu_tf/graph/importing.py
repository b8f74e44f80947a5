"""A flat GraphDef with static shapes -> Graph: variables as versions, dead and equal nodes gone."""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import attr_value_pb2, graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.errors import GraphError
from tofu_tf.graph.attributes import complete, decode, encode, signature
from tofu_tf.graph.functions import named_by, reachable, rename, without_devices
from tofu_tf.graph.ir import PLACEHOLDER, VARIABLE, Graph, Node, Ref, TensorSpec, Variable
from tofu_tf.graph.registered import op_definition
from tofu_tf.graph.state import (
    CARRIERS,
    HANDLE_MAKERS,
    LOOPS,
    READ,
    has_own_effect,
    is_pure,
    written_operands,
)

Shapes = Mapping[str, tuple[TensorSpec, ...]]


def import_graph(
    graph_def: graph_pb2.GraphDef,
    shapes: Shapes,
    inputs: Sequence[str],
    outputs: Sequence[str],
    effects: Sequence[str] = (),
    handles: Mapping[str, Variable] | None = None,
) -> Graph:
    """The Graph of the part of `graph_def` that `outputs` and `effects` need.

    Args:
      graph_def: flat: functions may remain only in calls, conditionals and loops.
      shapes: every output's spec, by node name; -1 stands for an unknown dimension.
      inputs: names of the Placeholders that are fed, in call order; kept even if unused.
      outputs: what is fetched: ``node`` or ``node:1``.
      effects: nodes that must run, with all that they wait for (a function's control outputs).
      handles: the variable behind each resource Placeholder; VarHandleOps are found by themselves.

    Reads become references to a version, writes make the next one (see ir.py). Control edges remain
    only between nodes with effects of their own (prints, checks, calls). Nodes that pass a value on
    are bypassed and equal pure nodes merge.

    Raises:
      GraphError: unknown ops, bad edges, unfed placeholders, cycles; all of one kind at once.
    """
    edges = _Edges.of(graph_def)
    fetched = [_parse(o, edges, "a fetch") for o in outputs]
    for name in (*inputs, *effects):
        _parse(name, edges, "an input or effect")
    kept = _reachable(edges, [*(r.node for r in fetched), *effects, *inputs], frozenset(inputs))
    order = _ordered(edges, kept)
    _check_fed(edges, order, {*inputs, *(handles or {})})
    walk = _Walk(edges, shapes, _variables(edges, order, dict(handles or {})))
    for name in inputs:
        walk.placeholder(name)
    for name in order:
        walk.visit(name)
    graph = walk.graph(inputs, fetched)
    called = [name for node in graph for name in named_by(node.op, node.attrs)]
    library = {f.signature.name: f for f in graph_def.library.function}
    functions, names = without_devices(reachable(called, library))
    nodes = {name: _renamed(node, names) for name, node in graph.nodes.items()}
    return dataclasses.replace(graph, nodes=nodes, functions=functions)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with new names for the functions that it calls."""
    if names.keys().isdisjoint(named_by(node.op, node.attrs)):
        return node
    attrs = {}
    for key, attr in node.attrs.items():
        attrs[key] = attr_value_pb2.AttrValue()
        attrs[key].CopyFrom(attr)
        rename(attrs[key], names)
    return dataclasses.replace(node, op=names.get(node.op, node.op), attrs=attrs)


def check_nodes(graph_def: graph_pb2.GraphDef) -> None:
    """Raises GraphError for unknown ops, edges from nowhere and double names, all of them named."""
    _Edges.of(graph_def)


@dataclasses.dataclass(frozen=True)
class _Edges:
    """The GraphDef's nodes by name with their parsed data and control inputs."""

    nodes: Mapping[str, NodeDef]
    data: Mapping[str, tuple[Ref, ...]]
    controls: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(graph_def: graph_pb2.GraphDef) -> _Edges:
        nodes = {n.name: n for n in graph_def.node}
        if len(nodes) != len(graph_def.node):
            counts = collections.Counter(n.name for n in graph_def.node)
            twice = sorted(name for name, n in counts.items() if n > 1)
            raise GraphError(", ".join(twice), "several nodes of one name", "unique node names")
        functions = {function.signature.name for function in graph_def.library.function}
        ops = {n.op for n in graph_def.node} - functions
        unknown = sorted(op for op in ops if op_definition(op) is None)
        if unknown:
            where = "; ".join(
                f"{op} (node {next(n.name for n in graph_def.node if n.op == op)})"
                for op in unknown
            )
            raise GraphError(
                where,
                "the installed TensorFlow does not know this op",
                "registered ops",
                "load the library that registers it (tf.load_op_library), or inline that function",
            )
        data: dict[str, tuple[Ref, ...]] = {}
        controls: dict[str, tuple[str, ...]] = {}
        bad: list[str] = []
        for node in graph_def.node:
            operands, waits = [], []
            for text in node.input:
                if text.startswith("^"):
                    waits.append(text[1:])
                    source = text[1:]
                else:
                    operands.append(_ref(text))
                    source = operands[-1].node
                if source not in nodes:
                    bad.append(f"{node.name} <- {text}")
            data[node.name], controls[node.name] = tuple(operands), tuple(dict.fromkeys(waits))
        if bad:
            raise GraphError(
                "; ".join(bad),
                "an edge from a node that is not there",
                "",
                "export the graph again, whole",
            )
        return _Edges(nodes, data, controls)


def _ref(text: str) -> Ref:
    name, colon, index = text.rpartition(":")
    return Ref(name, int(index)) if colon and index.isdigit() else Ref(text, 0)


def _parse(text: str, edges: _Edges, what: str) -> Ref:
    ref = _ref(text.removeprefix("^"))
    if ref.node not in edges.nodes:
        raise GraphError(
            text, f"{what} that the graph does not hold", "the name of one of its nodes"
        )
    return ref


def _reachable(edges: _Edges, roots: Iterable[str], fed: frozenset[str]) -> set[str]:
    found: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        if name not in fed:
            stack += edges.controls[name]
            stack += [r.node for r in edges.data[name]]
    return found


def _check_fed(edges: _Edges, order: Sequence[str], fed: set[str]) -> None:
    missing = [n for n in order if edges.nodes[n].op == PLACEHOLDER and n not in fed]
    if missing:
        raise GraphError(
            ", ".join(missing),
            "a Placeholder that is needed and neither fed nor a variable",
            "every needed Placeholder among the inputs",
            "name it as a feed",
        )


def _ordered(edges: _Edges, kept: set[str]) -> list[str]:
    """The names in `kept`, inputs and control inputs first, else in the GraphDef's order."""
    position = {name: i for i, name in enumerate(edges.nodes)}
    names = list(edges.nodes)
    consumers: dict[str, list[str]] = {name: [] for name in kept}
    missing: dict[str, int] = {}
    for name in kept:
        sources = ({r.node for r in edges.data[name]} | set(edges.controls[name])) & kept
        missing[name] = len(sources)
        for source in sources:
            consumers[source].append(name)
    ready = [position[name] for name, n in missing.items() if n == 0]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        order.append(name)
        for consumer in consumers[name]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, position[consumer])
    if len(order) < len(kept):
        stuck = [f"{n} ({edges.nodes[n].op})" for n in edges.nodes if missing.get(n, 0) > 0]
        raise GraphError(
            ", ".join(stuck[:8]),
            f"{len(stuck)} nodes on or behind a cycle",
            "a graph without cycles",
            "export loops as While ops (enable_control_flow_v2), not as Enter/Exit frames",
        )
    return order


def _variables(
    edges: _Edges, order: Sequence[str], handles: dict[str, Variable]
) -> dict[str, Variable]:
    """The variable behind every handle; VarHandleOps of one shared name are one variable."""
    taken = {v.name for v in handles.values()}
    by_shared: dict[str, Variable] = {}
    for name in order:
        node = edges.nodes[name]
        if node.op not in HANDLE_MAKERS or name in handles:
            continue
        shared = node.attr["shared_name"].s.decode() or name
        if shared not in by_shared:
            shape = decode(node.attr["shape"])
            if shape is None or -1 in shape:
                raise GraphError(
                    name, f"a variable of shape {shape}", "a static shape", "give it one"
                )
            unique, n = shared, 0
            while unique in taken:
                n += 1
                unique = f"{shared}_{n}"
            taken.add(unique)
            spec = TensorSpec(shape, decode(node.attr["dtype"]))
            by_shared[shared] = Variable(unique, spec, name)
        handles[name] = by_shared[shared]
    return handles


class _Walk:
    """Makes the IR's nodes in the order given, knowing every variable's version so far."""

    def __init__(self, edges: _Edges, shapes: Shapes, handles: Mapping[str, Variable]) -> None:
        self.edges, self.shapes, self.handles = edges, shapes, handles
        self.variables = {v.name: v for v in handles.values()}
        self.nodes: dict[str, Node] = {}
        self.alias: dict[Ref, Ref] = {}  # what an output of the GraphDef is in the IR
        self.variable_of: dict[Ref, str] = {}  # which variable a handle stands for
        self.version: dict[str, Ref] = {}
        self.merged: dict[tuple[object, ...], str] = {}
        self.effects: list[str] = []
        self.own: set[str] = set()  # nodes with effects of their own
        self.before: dict[
            str, frozenset[str]
        ] = {}  # those of them that a node, gone or not, comes after
        for variable in self.variables.values():
            self.nodes[variable.node] = Node(variable.node, VARIABLE, (), (variable.spec,), {})
            self.version[variable.name] = variable.ref

    def placeholder(self, name: str) -> None:
        """Whatever is fed becomes a Placeholder, so that a graph can be fed in its middle."""
        if name in self.before:
            return
        spec = self.shapes[name][0]
        attrs = {"dtype": encode(spec.dtype, "type"), "shape": encode(spec.shape, "shape")}
        self.nodes[name] = Node(name, PLACEHOLDER, (), (spec,), attrs)
        self.before[name] = _NOTHING

    def visit(self, name: str) -> None:
        node = self.edges.nodes[name]
        if name in self.before:
            return
        self.before[name] = self._comes_after(name)
        if name in self.handles:
            self.variable_of[Ref(name)] = self.handles[name].name
        elif node.op in CARRIERS:
            for i, source in enumerate(self.edges.data[name]):
                self._carry(source, Ref(name, i))
        elif node.op == READ and (handle := self.edges.data[name][0]) in self.variable_of:
            self.alias[Ref(name)] = self.version[self.variable_of[handle]]
        elif node.op != "NoOp":
            self._emit(node)

    def _comes_after(self, name: str) -> frozenset[str]:
        found: set[str] = set()
        for source in (*self.edges.controls[name], *(r.node for r in self.edges.data[name])):
            if source in self.own:
                found.add(source)
            else:
                found |= self.before[source]
        return frozenset(found) if found else _NOTHING

    def _carry(self, source: Ref, to: Ref) -> None:
        if source in self.variable_of:
            self.variable_of[to] = self.variable_of[source]
        else:
            self.alias[to] = self.resolve(source)

    def resolve(self, ref: Ref) -> Ref:
        if ref in self.variable_of:
            return self.version[self.variable_of[ref]]
        found = self.alias.get(ref, ref)
        made = self.nodes.get(found.node)
        if made is None or found.index >= len(made.outputs):
            raise GraphError(
                str(ref),
                "an edge from an output that its node does not have",
                f"an output below {0 if made is None else len(made.outputs)}",
                "export the graph again",
            )
        return found

    def _emit(self, node: NodeDef) -> None:
        name, op = node.name, node.op
        sources = self.edges.data[name]
        held = {i: self.variable_of[s] for i, s in enumerate(sources) if s in self.variable_of}
        writes = tuple(dict.fromkeys(held[i] for i in written_operands(node, tuple(held))))
        own = has_own_effect(op, len(held))
        inputs = tuple(self.resolve(s) for s in sources)
        waits = self.before[name] - {r.node for r in inputs} if own else _NOTHING
        made = Node(
            name,
            op,
            inputs,
            self.shapes[name] + tuple(self.variables[w].spec for w in writes),
            complete(op, node.attr),
            tuple(sorted(waits)),
            held,
            writes,
        )
        if not own and not writes and is_pure(op):
            first = self.merged.setdefault((op, signature(made), inputs, made.outputs), name)
            if first != name:
                for i in range(len(made.outputs)):
                    self.alias[Ref(name, i)] = Ref(first, i)
                return
        self.nodes[name] = made
        for variable in writes:
            self.version[variable] = made.version(variable)
        if own:
            self.own.add(name)
        if own or writes:
            self.effects.append(name)
        if op in LOOPS:
            # A loop hands its handles on unchanged.
            for i, variable in held.items():
                self.variable_of[Ref(name, i)] = variable

    def graph(self, inputs: Sequence[str], fetched: Sequence[Ref]) -> Graph:
        outputs = tuple(self.resolve(r) for r in fetched)
        live = set(inputs)
        stack = [*(r.node for r in outputs), *self.effects]
        while stack:
            name = stack.pop()
            if name not in live:
                live.add(name)
                node = self.nodes[name]
                stack += [r.node for r in node.inputs] + list(node.controls)
        variables = {n: v for n, v in self.variables.items() if v.node in live}
        nodes = {name: node for name, node in self.nodes.items() if name in live}
        return Graph(nodes, tuple(inputs), outputs, variables, tuple(self.effects))


_NOTHING: frozenset[str] = frozenset()
