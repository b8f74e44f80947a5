"""A Graph -> groups of tensors that share a decision, and the distinct operators between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

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
from tofu_tf.graph.ir import CONST, WEIGHT, Graph, Node, Ref
from tofu_tf.ops.applicable import AT_HOME, NO_DESCRIPTION, Describing
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
    if not whole:
        refuse_undescribed(graph, describing)
    wanted = dict(wanted or {})
    kept = kept_variables(graph, describing)
    _check_kept(graph, kept, wanted)
    at_home = frozenset(
        ref
        for name, refs in traversal.versions(graph).items()
        if name in kept or ((asked := wanted.get(graph.variables[name].ref)) and asked.home)
        for ref in refs
    ) | _weights_at_home(graph, describing)
    ties = Ties(wanted)
    tie_versions(graph, ties)
    large = frozenset(
        ref
        for node in graph
        if node.op != CONST
        for ref, spec in zip(node.refs, node.outputs, strict=True)
        if spec.nbytes > small_bytes and spec.size > 1 and ref not in at_home
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
    ) | frozenset(kept)
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
    missing: dict[str, list[Node]] = {}
    for node in undescribed(graph, describing):
        if node.op not in AT_HOME:
            missing.setdefault(node.op, []).append(node)
    if missing:
        listed = []
        for op, nodes in sorted(missing.items()):
            why = describing.why_not(nodes[0])
            more = "" if why == NO_DESCRIPTION else f": {why}"
            many = "s" if len(nodes) > 1 else ""
            listed.append(f"{op} ({len(nodes)} node{many}, such as {nodes[0].name}{more})")
        raise errors.UndescribedError(
            "graph",
            f"ops without a description: {'; '.join(listed)}",
            "a description for every op, to know how it can be cut",
            "describe them with @tofu_tf.op, replace them in the model, or run them whole on the "
            "first device with undescribed='whole'",
        )


def undescribed(graph: Graph, describing: Describing) -> Iterator[Node]:
    """The nodes that can only run whole, in order."""
    return (node for node in graph if needs_strategy(node) and describing(node) is None)


def kept_variables(graph: Graph, describing: Describing) -> dict[str, Node]:
    """The variables whose handles go into nodes that run whole, with the first such node."""
    found: dict[str, Node] = {}
    for node in undescribed(graph, describing):
        for name in node.variables.values():
            found.setdefault(name, node)
    return found


def _weights_at_home(graph: Graph, describing: Describing) -> frozenset[Ref]:
    """The weights that only nodes read which run whole: on worker 0, where these run."""
    uses = traversal.consumers(graph)
    whole = {node.name for node in undescribed(graph, describing)}
    return frozenset(
        ref
        for node in graph
        if node.op == WEIGHT
        for ref in node.refs
        if ref in uses and all(name in whole for name, _ in uses[ref])
    )


def _check_kept(graph: Graph, kept: Mapping[str, Node], wanted: Mapping[Ref, Layout]) -> None:
    """Raises ConstraintError where a `kept` variable is asked to lie elsewhere than on worker 0."""
    wrong = [
        f"{name} as {wanted[ref]} ({node.name} ({node.op}) takes its handle)"
        for name, node in kept.items()
        if (ref := graph.variables[name].ref) in wanted and not wanted[ref].home
    ]
    if wrong:
        raise errors.ConstraintError(
            "layouts",
            f"asked for variables of ops that run whole: {'; '.join(wrong)}",
            "such variables whole on worker 0",
            "leave their layouts open, or describe these ops",
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
            tuple(s.region_shape for s in specs),
            tuple(s.region_shape for s in node.outputs),
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
