"""A Graph -> groups of tensors that share a decision, and the distinct operators between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tofu_tf import errors
from tofu_tf.coarsen.bookkeeping import SOURCES, home_variables, places_of
from tofu_tf.coarsen.groups import (
    COPIED,
    HOME,
    SMALL_BYTES,
    UNUSED,
    Coarse,
    Group,
    Operator,
    Place,
)
from tofu_tf.coarsen.ties import Ties, tie_elementwise, tie_versions
from tofu_tf.graph import state, traversal
from tofu_tf.graph.ir import CONST, Graph, Node, Ref
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.layouts import Layout

# Nodes without tensors, that only order others.
_EMPTY = frozenset({"NoOp"})


def coarsen(
    graph: Graph,
    describing: Describing,
    wanted: Mapping[Ref, Layout] | None = None,
    small_bytes: int = SMALL_BYTES,
    whole: bool = False,
) -> Coarse:
    """The groups and operators of `graph`.

    Args:
      graph: the step.
      describing: descriptions of its nodes.
      wanted: layouts asked for some tensors; their groups are fixed to them, whatever their size.
      small_bytes: tensors up to this size are not cut, nor is a single element.
      whole: whether ops without description run whole on worker 0 instead of being refused.

    Raises:
      UndescribedError: the ops that have no description, unless `whole`.
      ConstraintError: versions of one variable that are asked to lie differently.
    """
    wanted = dict(wanted or {})
    if not whole:
        refuse_undescribed(graph, describing)
    ties = Ties(wanted)
    tie_versions(graph, ties)
    large = frozenset(
        ref
        for node in graph
        if node.op != CONST
        for ref, spec in zip(node.refs, node.outputs, strict=True)
        if spec.nbytes > small_bytes and spec.size > 1
    )
    variables = traversal.version_variables(graph)

    def elementwise(node: Node) -> bool:
        described = describing(node) if node.op not in SOURCES else None
        return described is not None and described.entry.elementwise

    tie_elementwise(graph, elementwise, large, ties)
    grouped: dict[Ref, Ref] = {}
    kept_whole: dict[Ref, Layout] = {}
    for ref in graph.refs():
        asked = ties.wanted(ref)
        if graph.nodes[ref.node].op == CONST:
            continue
        if asked is not None and ref not in large and (asked.replicated or asked.home):
            kept_whole[ref] = asked
        elif ref in large or asked is not None:
            grouped[ref] = ties.find(ref)
    home = home_variables(
        graph,
        frozenset(v.ref for v in graph.variables.values() if v.ref not in large),
        {**wanted, **kept_whole},
    )
    places, small = places_of(
        graph, grouped, home, lambda n: n.op in _EMPTY or describing(n) is not None
    )
    for ref, layout in kept_whole.items():
        if ref not in variables:
            small[ref] = HOME if layout.home else COPIED
    groups, group_of = _groups(graph, grouped, ties)
    return Coarse(
        graph,
        groups,
        _operators(graph, describing, places, group_of, small),
        group_of,
        small,
        small_bytes,
    )


def refuse_undescribed(graph: Graph, describing: Describing) -> None:
    """Nothing; raises UndescribedError when some ops have no description, naming all of them."""
    missing: dict[str, list[str]] = {}
    for node in graph:
        if node.op not in SOURCES and node.op not in _EMPTY and describing(node) is None:
            missing.setdefault(node.op, []).append(node.name)
    if missing:
        listed = "; ".join(
            f"{op} ({len(names)} node{'s' if len(names) > 1 else ''}, such as {names[0]})"
            for op, names in sorted(missing.items())
        )
        raise errors.UndescribedError(
            "graph",
            f"ops without a description: {listed}",
            "a description for every op, to know how it can be cut",
            "describe them with @tofu_tf.op, or replace them in the model",
        )


def _groups(
    graph: Graph, grouped: Mapping[Ref, Ref], ties: Ties
) -> tuple[tuple[Group, ...], dict[Ref, int]]:
    members: dict[Ref, list[Ref]] = {}
    for ref, root in grouped.items():
        members.setdefault(root, []).append(ref)
    groups: list[Group] = []
    group_of: dict[Ref, int] = {}
    for root, refs in members.items():
        spec = graph.spec(refs[0])
        groups.append(Group(len(groups), tuple(refs), spec.shape, spec.itemsize, ties.wanted(root)))
        for ref in refs:
            group_of[ref] = groups[-1].id
    return tuple(groups), group_of


def _operators(
    graph: Graph,
    describing: Describing,
    places: Mapping[str, Place],
    group_of: Mapping[Ref, int],
    small: Mapping[Ref, int],
) -> tuple[Operator, ...]:
    uses = traversal.consumers(graph)
    fetched = frozenset(graph.outputs)
    found: dict[Operator, list[str]] = {}
    for node in graph:
        if node.op in SOURCES or node.op in _EMPTY:
            continue
        described = describing(node)
        own = len(node.outputs) - len(node.writes)
        inputs = tuple(group_of.get(r, small.get(r, COPIED)) for r in node.inputs)
        outputs = tuple(
            group_of.get(r, small.get(r, COPIED))
            if i >= own or r in uses or r in fetched
            else UNUSED
            for i, r in enumerate(node.refs)
        )
        specs = [graph.spec(r) for r in node.inputs]
        touched = {g for g in (*inputs, *outputs) if g not in (COPIED, UNUSED)}
        internal = (
            described is not None
            and described.entry.elementwise
            and places[node.name] is Place.CUT
            and len(touched) == 1
            and min(touched) >= 0
            and all(g >= 0 for g in outputs)
        )
        operator = Operator(
            described,
            places[node.name],
            inputs,
            outputs,
            tuple(s.shape for s in specs),
            tuple(s.shape for s in node.outputs),
            tuple(s.itemsize for s in specs),
            tuple(s.itemsize for s in node.outputs),
            len(node.writes),
            node.op in state.RANDOM,
            internal,
            (),
        )
        found.setdefault(operator, []).append(node.name)
    return tuple(
        dataclasses.replace(operator, nodes=tuple(names)) for operator, names in found.items()
    )


def needs_strategy(node: Node) -> bool:
    """Whether a plan says how this node runs: it is no source of a tensor, and does something."""
    return node.op not in SOURCES and node.op not in _EMPTY
