"""Conditionals -> both branches in a straight line, what they give chosen by SelectV2.

Every op of a branch is an op like any other then: it is described, cut and placed as such. Its side
effects are predicated (see predicating.py). The branches come one after the other, so that a
variable which both write has one version after the other: ``v1 = p ? new : v0``, ``v2 = p ? v1 :
other``. A conditional of which anything cannot be done so stays whole, with its reason.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping, MutableMapping

from tensorflow.core.framework import graph_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tofu_tf.capture.bodies import Body, body_of, sources_first
from tofu_tf.capture.folding import NEVER, OF_SHAPE
from tofu_tf.capture.predicating import Unconvertible
from tofu_tf.capture.splicing import CONDITIONALS, Splice, divided, follow, node_of
from tofu_tf.graph.functions import named_by, reachable
from tofu_tf.graph.ir import CONST
from tofu_tf.graph.state import is_stateful

# What hands an optional on.
_PLUMBING = ("Identity", "IdentityN", "OptionalFromValue", "SelectV2")


@dataclasses.dataclass(frozen=True)
class Converted:
    """A GraphDef with fewer conditionals.

    `agreeing`: SelectV2 nodes whose operands must have one shape, and `scalars`: tensors that must
    be scalars, with the conditional in which they stand. `kept`: conditionals that must stay, with
    their reasons; others that are left can be done without once more is known, or once more.
    """

    graph_def: graph_pb2.GraphDef
    agreeing: Mapping[str, str]
    scalars: Mapping[str, str]
    kept: Mapping[str, str]


def convert(
    graph_def: graph_pb2.GraphDef,
    kept: Mapping[str, str] | None = None,
    drawn: Collection[str] = (),
    postpone: bool = False,
    roots: Collection[str] = (),
) -> Converted:
    """`graph_def` without those conditionals that can be done without.

    A node of a conditional's name stays and passes on what the branches give, so that nobody else
    has to change. Where the predicate is a constant only that branch is left, as it is.

    Args:
      graph_def: calls inlined, at its top.
      kept: conditionals that must stay, with the reasons.
      drawn: stateful random ops that will draw from a variable (see drawing.py).
      postpone: leave those alone whose predicate folding may make a constant.
      roots: what is fetched, or must run.
    """
    found = dict(kept or {})
    if not any(node.op in CONDITIONALS for node in graph_def.node):
        return Converted(graph_def, {}, {}, found)
    while True:
        straight = _Straight(graph_def, drawn)
        for node in sources_first(graph_def.node):
            stays = node.op not in CONDITIONALS or node.name in found
            if stays or (postpone and straight.may_become_constant(node.input[0])):
                straight.made.append(node)
            elif reason := straight.replace(node):
                found[node.name] = reason
                straight.made.append(node)
        asked = straight.drop_optionals(frozenset(roots))
        if not asked:
            break
        found |= asked
    return Converted(
        straight.graph_def(),
        straight.agreeing,
        straight.scalars,
        found,
    )


class _Straight:
    """The GraphDef in the making: what is copied from the old one, and what replaces conditionals.

    `nodes`: every node that there is, made or still to be copied.
    """

    def __init__(self, old: graph_pb2.GraphDef, drawn: Collection[str]) -> None:
        self.old, self.drawn = old, drawn
        self.functions = {f.signature.name: f for f in old.library.function}
        self.nodes: MutableMapping[str, NodeDef] = {node.name: node for node in old.node}
        self.made: list[NodeDef] = []
        self.agreeing: dict[str, str] = {}
        self.scalars: dict[str, str] = {}
        self.optionals: dict[str, str] = {}
        self.cases: dict[str, list[str]] = {}
        self._bodies: dict[str, Body] = {}
        self._constant: dict[str, bool] = {}

    def replace(self, node: NodeDef) -> str:
        """Puts both branches in the place of `node`; else says why not, and leaves no trace."""
        splice = Splice(self)
        data, waits = divided(node.input)
        try:
            splice.conditional(node, data, waits, "")
        except Unconvertible as why:
            return str(why)
        self._constant.clear()
        self.nodes.update(splice.own)
        self.made += splice.own.values()
        for name in splice.agreeing:
            self.agreeing[name] = node.name
        for ref in splice.scalars:
            self.scalars[ref] = node.name
        for name in splice.optionals:
            self.optionals[name] = node.name
        self.cases |= splice.cases
        return ""

    def body(self, name: str) -> Body:
        if name not in self._bodies:
            found = body_of(self.functions[name], self.functions, self.old.versions)
            self._bodies[name] = found
            self.functions |= found.functions
        return self._bodies[name]

    def may_become_constant(self, choice: str) -> bool:
        return self.may_fold(choice) and self.nodes[node_of(follow(choice, self.nodes))].op != CONST

    def may_fold(self, ref: str, nodes: Mapping[str, NodeDef] | None = None) -> bool:
        """Whether `ref` is computed from constants and shapes alone."""
        nodes = self.nodes if nodes is None else nodes
        known, stack = self._constant, [node_of(ref)]
        while stack:
            name = stack[-1]
            node = nodes[name]
            sources = [node_of(text) for text in divided(node.input)[0]]
            pure = node.op not in NEVER and not is_stateful(node.op)
            if name in known:
                stack.pop()
            elif node.op == CONST or node.op in OF_SHAPE:
                known[name] = True
            elif not pure or not sources or any(known.get(s) is False for s in sources):
                known[name] = False
            elif missing := [s for s in sources if s not in known]:
                stack.append(missing[0])
            else:
                known[name] = True
        return known[node_of(ref)]

    def drop_optionals(self, roots: Collection[str]) -> dict[str, str]:
        """Empties the optionals that nobody asks for: the gradient of a conditional has taken the
        values inside. Returns the replaced conditionals whose optionals are asked for.
        """
        consumers: dict[str, list[tuple[NodeDef, int]]] = collections.defaultdict(list)
        for node in self.made if self.optionals else ():
            for i, ref in enumerate(divided(node.input)[0]):
                consumers[ref if ":" in ref else f"{ref}:0"].append((node, i))
        asked = {}
        for name, conditional in self.optionals.items():
            stack = [f"{name}:0"]
            while stack:
                for node, i in consumers[stack.pop()]:
                    if node.op not in _PLUMBING or (node.op == "Identity" and node.name in roots):
                        asked[conditional] = "an optional that it gives is asked for"
                    else:
                        stack.append(f"{node.name}:{i if node.op == 'IdentityN' else 0}")
        for i, node in enumerate(self.made):
            if node.name in self.optionals:
                self.made[i] = NodeDef(name=node.name, op="OptionalNone", device=node.device)
        return asked

    def graph_def(self) -> graph_pb2.GraphDef:
        result = graph_pb2.GraphDef(versions=self.old.versions)
        result.node.extend(self.made)
        called = [name for node in self.made for name in named_by(node.op, node.attr)]
        result.library.function.extend(reachable(called, self.functions).values())
        result.library.gradient.extend(self.old.library.gradient)
        return result
