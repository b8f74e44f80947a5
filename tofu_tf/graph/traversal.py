"""Consumers, levels, last versions and the fingerprint of a Graph."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tofu_tf.graph.attributes import signature_of
from tofu_tf.graph.functions import digests
from tofu_tf.graph.ir import PLACEHOLDER, VARIABLE, Graph, Ref


def consumers(graph: Graph) -> Mapping[Ref, tuple[tuple[str, int], ...]]:
    """(node, input position) of every use of each tensor; tensors without a use are left out."""
    found: defaultdict[Ref, list[tuple[str, int]]] = defaultdict(list)
    for node in graph:
        for i, ref in enumerate(node.inputs):
            found[ref].append((node.name, i))
    return {ref: tuple(uses) for ref, uses in found.items()}


def versions(graph: Graph) -> Mapping[str, tuple[Ref, ...]]:
    """Every variable's versions, first to last."""
    found = {name: [variable.ref] for name, variable in graph.variables.items()}
    for node in graph:
        for variable in node.writes:
            found[variable].append(node.version(variable))
    return {name: tuple(refs) for name, refs in found.items()}


def last_versions(graph: Graph) -> Mapping[str, Ref]:
    """Every variable's version at the end of the step."""
    return {name: refs[-1] for name, refs in versions(graph).items()}


def version_variables(graph: Graph) -> Mapping[Ref, str]:
    """The variable that each version belongs to."""
    return {ref: name for name, refs in versions(graph).items() for ref in refs}


def ancestors(graph: Graph, roots: Iterable[str]) -> frozenset[str]:
    """Nodes that `roots` need, themselves included, over data and control edges."""
    found: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            node = graph.nodes[name]
            stack += [r.node for r in node.inputs] + list(node.controls)
    return frozenset(found)


def live(graph: Graph) -> Graph:
    """`graph` without nodes that nothing needs; its variables stay."""
    roots = [*(r.node for r in graph.outputs), *graph.effects, *graph.inputs]
    needed = ancestors(graph, roots)
    nodes = {n.name: n for n in graph if n.name in needed or n.op == VARIABLE}
    return dataclasses.replace(graph, nodes=nodes)


def fingerprint(graph: Graph) -> str:
    """A hash of ops, attributes, shapes and edges that no name of a node, variable or function
    enters.

    Nodes count in the graph's own order; one traced again with other layer names has the same one.
    """
    number = {name: i for i, name in enumerate(graph.nodes)}
    total = hashlib.sha256()
    bodies = digests(graph.functions)

    def body(name: str) -> str:
        return bodies.get(name, name)

    def edge(ref: Ref) -> str:
        return f"{number[ref.node]}:{ref.index}"

    for node in graph:
        attrs = "" if node.op == PLACEHOLDER else signature_of(node.attrs, body)
        line = (
            body(node.op),
            attrs,
            ",".join(map(edge, node.inputs)),
            ",".join(map(str, node.outputs)),
            ",".join(str(number[c]) for c in node.controls),
            ",".join(edge(graph.variables[v].ref) for v in node.writes),
        )
        total.update("|".join(line).encode() + b"\n")
    tail = [*map(edge, graph.outputs), *(str(number[n]) for n in (*graph.inputs, *graph.effects))]
    total.update(",".join(tail).encode())
    return total.hexdigest()
