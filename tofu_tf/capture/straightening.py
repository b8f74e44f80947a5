"""A GraphDef without calls -> one without conditionals, folded, its random ops drawing from states.

Whether both branches of a conditional can be run depends on shapes, which folding finds, and some
predicates only folding makes constants: these passes take turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.capture.branching import Converted, convert
from tofu_tf.capture.drawing import STATEFUL, Drawn, Streams, draw
from tofu_tf.capture.folding import fold
from tofu_tf.capture.shaping import operation
from tofu_tf.capture.splicing import CONDITIONALS
from tofu_tf.graph.attributes import WHY_WHOLE
from tofu_tf.graph.importing import Shapes

Importer = Callable[[graph_pb2.GraphDef, Mapping[str, tf.Tensor]], tf.Graph]


@dataclasses.dataclass(frozen=True)
class Straight:
    """A folded GraphDef, the specs of its tensors, and the states that its random ops draw from.

    `drawn.graph_def` is the graph before it was folded.
    """

    graph_def: graph_pb2.GraphDef
    shapes: Shapes
    drawn: Drawn


def straighten(
    graph_def: graph_pb2.GraphDef,
    roots: Iterable[str],
    importer: Importer,
    streams: Streams | None = None,
    taken: Collection[str] = (),
) -> Straight:
    """`graph_def` without the conditionals that can be done without, and without shape arithmetic.

    Args:
      graph_def: calls inlined.
      roots: the fed, fetched and effectful nodes: they keep their names.
      importer: (GraphDef, placeholders of states) -> the tf.Graph, with all that is known of its
        placeholders.
      streams: where the states of stateful random ops come from; None leaves these ops alone, and
        whole the conditionals that hold one.
      taken: names of variables that a state must not have.
    """
    roots = tuple(roots)
    kept: dict[str, str] = {}
    states = Drawn(graph_def, {}, {}, {})
    postpone = True
    while True:
        converted = convert(graph_def, kept, () if streams is None else STATEFUL, postpone, roots)
        drawn = _joined(states, draw(converted.graph_def, streams, {*taken, *states.variables}))
        checking = _Checking(converted, importer, drawn.placeholders)
        folded, shapes = fold(drawn.graph_def, roots, checking)
        if wrong := checking.wrong():
            kept |= wrong
            continue
        kept |= converted.kept
        left = [node for node in folded.node if node.op in CONDITIONALS]
        if all(node.name in kept for node in left):
            for node in left:
                node.attr[WHY_WHOLE].s = kept[node.name].encode()
            return Straight(folded, shapes, drawn)
        graph_def, states, postpone = folded, drawn, False


def _joined(before: Drawn, more: Drawn) -> Drawn:
    return Drawn(
        more.graph_def,
        {**before.placeholders, **more.placeholders},
        {**before.handles, **more.handles},
        {**before.variables, **more.variables},
    )


class _Checking:
    """Imports a graph that is being folded, and notes which conditionals should have stayed."""

    def __init__(
        self, converted: Converted, importer: Importer, placeholders: Mapping[str, tf.Tensor]
    ) -> None:
        self.converted, self.importer, self.placeholders = converted, importer, placeholders
        self._wrong: dict[str, str] = {}
        self._unknown: dict[str, str] = {}

    def __call__(self, graph_def: graph_pb2.GraphDef) -> tf.Graph:
        graph = self.importer(graph_def, self.placeholders)
        self._unknown = {}
        for name, conditional in self.converted.agreeing.items():
            select = operation(graph, name)
            if select is not None:
                _, one, other = (tensor.shape for tensor in select.inputs)
                if not (one.is_fully_defined() and other.is_fully_defined()):
                    self._unknown[conditional] = "a size that depends on data in a branch"
                elif one != other:
                    self._wrong[conditional] = f"its branches give shapes {one} and {other}"
        for ref, conditional in self.converted.scalars.items():
            name, _, index = ref.partition(":")
            made = operation(graph, name)
            if made is not None and made.outputs[int(index or 0)].shape.rank != 0:
                self._wrong[conditional] = "its predicate is no scalar"
        return graph

    def wrong(self) -> dict[str, str]:
        """Conditionals with the reason why they should stay, from what the last import knew."""
        return {**self._unknown, **self._wrong}
