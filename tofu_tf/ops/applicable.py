"""What the registered description of an op says of one node: its variants, analysed on its
shapes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from tofu_tf.graph import attributes
from tofu_tf.graph.ir import CONST, Graph, Node
from tofu_tf.ops.registry import REGISTRY, OpEntry, Variant
from tofu_tf.tdl import descriptions, strategies
from tofu_tf.tdl.descriptions import Description


@dataclasses.dataclass(frozen=True, eq=False)
class Applied:
    """One variant of an op on a node's shapes: its description and the axes that can be cut."""

    variant: Variant
    description: Description
    axes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Described:
    """A node's entry, variants, constant inputs, attributes; equal `signature` = equal
    everything.
    """

    entry: OpEntry
    applied: tuple[Applied, ...]
    constants: Mapping[int, np.ndarray]
    attributes: Mapping[str, Any]
    signature: str

    def variant(self, name: str) -> Applied:
        return next(a for a in self.applied if a.variant.name == name)


NO_DESCRIPTION = "no description"
# Ops that run whole on the first device because they are to, and are not refused.
AT_HOME = {"Assert": "a check runs once, with all that it may report"}
# Tables, lists of tensors: only their own ops know what is inside.
_OPAQUE = ("resource", "variant")


def constant_inputs(node: Node, graph: Graph, entry: OpEntry) -> dict[int, np.ndarray]:
    """The values of the inputs that the op reads as attributes."""
    positions = [position % len(node.inputs) for position in entry.constants]
    values = {i: graph.const(node.inputs[i]) for i in positions}
    return {i: value for i, value in values.items() if value is not None}


class Describing:
    """Describes the nodes of one graph; equal nodes (op, attributes, shapes, constants) once
    only.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._by_node: dict[str, Described | None] = {}
        self._by_signature: dict[str, Described] = {}

    def __call__(self, node: Node) -> Described | None:
        """What is known of the node, or None when nothing is (see `why_not`)."""
        if node.name not in self._by_node:
            self._by_node[node.name] = None if self.why_not(node) else self._describe(node)
        return self._by_node[node.name]

    def why_not(self, node: Node) -> str:
        """Why the node cannot be described; "" when it can."""
        entry = REGISTRY.get(node.op)
        if entry is None:
            why = attributes.attribute(node, attributes.WHY_DYNAMIC, "")
            if why:
                return f"the size of output 0 depends on data: {why}"
            why = attributes.attribute(node, attributes.WHY_WHOLE, NO_DESCRIPTION)
            return AT_HOME.get(node.op, str(why))
        for position in entry.constants:
            i = position % len(node.inputs)
            if self.graph.nodes[node.inputs[i].node].op != CONST:
                return (
                    f"input {i} comes from {node.inputs[i]} and is not a constant, but decides "
                    "shapes"
                )
        for i, ref in enumerate(node.inputs):
            if self.graph.spec(ref).dtype in _OPAQUE:
                return f"input {i} is a {self.graph.spec(ref).dtype}"
        for kind, refs in (("input", node.inputs), ("output", node.refs)):
            for i, ref in enumerate(refs):
                if not self.graph.spec(ref).is_static:
                    return f"the size of {kind} {i} depends on data"
        return ""

    def _describe(self, node: Node) -> Described:
        entry = REGISTRY[node.op]
        constants = constant_inputs(node, self.graph, entry)
        specs = [self.graph.spec(r) for r in node.inputs]
        signature = "|".join(
            [
                node.op,
                attributes.signature(node),
                ";".join(map(str, specs)),
                ";".join(f"{i}={v.tolist()}" for i, v in constants.items()),
                ";".join(map(str, node.outputs)),
            ]
        )
        if signature not in self._by_signature:
            decoded = {k: attributes.decode(v) for k, v in node.attrs.items()}
            operands: list[Any] = [
                constants.get(i, (s.shape, s.dtype)) for i, s in enumerate(specs)
            ]
            shapes = [o.shape for o in node.outputs]
            applied = tuple(_apply(v, operands, shapes, decoded) for v in entry.variants)
            self._by_signature[signature] = Described(entry, applied, constants, decoded, signature)
        return self._by_signature[signature]


def _apply(
    variant: Variant, operands: list[Any], shapes: list[tuple[int, ...]], decoded: Mapping[str, Any]
) -> Applied:
    wanted = inspect.signature(variant.describe).parameters
    given = {
        name: decoded[name]
        for name, p in wanted.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY and name in decoded
    }
    if "out" in wanted:
        given["out"] = tuple(shapes)
    internals = variant.internals(operands, decoded) if variant.internals else ()
    description = descriptions.describe(
        variant.describe, operands, shapes, given, internals, variant.exact
    )
    if internals:  # without any the body is the op's one kernel
        description = dataclasses.replace(description, serves=variant.serves)
    axes = tuple(
        a for a in strategies.cuttable(description) if a.split(".")[0] not in variant.uncut
    )
    return Applied(variant, description, axes)
