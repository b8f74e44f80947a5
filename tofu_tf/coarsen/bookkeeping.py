"""Small tensors and what makes them: copied to every worker, or kept once on worker 0."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tofu_tf.coarsen.groups import COPIED, HOME, Place
from tofu_tf.graph import state, traversal
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, WEIGHT, Graph, Node, Ref, TensorSpec
from tofu_tf.plan.layouts import Layout

SOURCES = frozenset({CONST, WEIGHT, PLACEHOLDER, VARIABLE})


def home_variables(
    graph: Graph, small: Collection[Ref], wanted: Mapping[Ref, Layout]
) -> frozenset[str]:
    """Names of the variables that are kept once, on worker 0: counters, learning rate, metrics.

    These are the small ones that are neither trained nor shaped like one that is (a slot of its
    optimizer, a moving average), and every scalar that is not trained.
    """
    trained = {v.spec.shape for v in graph.variables.values() if v.trainable and v.spec.shape}
    found = set()
    for v in graph.variables.values():
        if v.ref in wanted:
            home = wanted[v.ref].home
        else:
            home = v.ref in small and not v.trainable and v.spec.shape not in trained
        if home:
            found.add(v.name)
    return frozenset(found)


def places_of(
    graph: Graph,
    grouped: Collection[Ref],
    home: Collection[str],
    described: Callable[[Node], bool],
) -> tuple[dict[str, Place], dict[Ref, int]]:
    """Where every node runs, and for every tensor outside `grouped` COPIED or HOME.

    A node runs on worker 0 when it writes a variable that is kept there, has an effect of its own,
    has no description, draws few random numbers, takes or makes what cannot be cut (strings,
    resources, sizes that depend on data), or is small and of use on worker 0 only.
    """
    uses = traversal.consumers(graph)
    versions = traversal.version_variables(graph)
    fetched = frozenset(graph.outputs)
    places: dict[str, Place] = {}
    small: dict[Ref, int] = {}
    for node in reversed(list(graph.nodes.values())):
        wanted_at: dict[Ref, int] = {}
        for ref in node.refs:
            if ref in grouped:
                continue
            if ref in versions:
                wanted_at[ref] = HOME if versions[ref] in home else COPIED
            elif node.op == CONST:
                wanted_at[ref] = COPIED
            elif _is_odd(graph.spec(ref)):
                wanted_at[ref] = HOME
            else:
                consumers = [places[name] for name, _ in uses.get(ref, ())]
                alone = all(p is Place.HOME for p in consumers) and (consumers or ref in fetched)
                wanted_at[ref] = HOME if alone else COPIED
        small.update(wanted_at)
        if node.op in SOURCES:
            continue
        touches_group = any(r in grouped for r in (*node.inputs, *node.refs))
        used = [at for ref, at in wanted_at.items() if uses.get(ref) or ref in fetched]
        if (
            any(v in home for v in node.writes)
            or state.has_own_effect(node.op, len(node.variables))
            or not described(node)
            or any(_is_odd(graph.spec(r)) for r in (*node.inputs, *node.refs))
            or (node.op in state.RANDOM and not any(r in grouped for r in node.refs))
        ):
            places[node.name] = Place.HOME
        elif touches_group:
            places[node.name] = Place.CUT
        elif not node.writes and used and all(at == HOME for at in used):
            places[node.name] = Place.HOME
        else:
            places[node.name] = Place.COPIED
    return places, small


def _is_odd(spec: TensorSpec) -> bool:
    return not spec.itemsize or not spec.is_static
