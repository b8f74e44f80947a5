"""Plans that cut every node in a way of its own: all its legal strategies, turn after turn.

Nodes of one signature take turns too, so that in as many plans as a signature has strategies every
one of them has been forced. Tensors lie as a seed says.
"""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from tests.rewrite.random_plans import random_layout
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import CONST, PLACEHOLDER, VARIABLE, Graph, Node, Ref
from tofu_tf.ops.applicable import Applied, Described, Describing
from tofu_tf.plan import machine as machines
from tofu_tf.plan.layouts import Layout
from tofu_tf.plan.plans import Plan, Strategy
from tofu_tf.tdl import strategies

FACTORS = {2: (2,), 3: (3,), 4: (2, 2)}


class Forcing:
    """The strategies of every node of one graph over k workers, and plans that force them."""

    def __init__(self, graph: Graph, workers: int) -> None:
        self.graph, self.machine = graph, machines.imagined(workers)
        self.factors = self.machine.factors
        self.describing = Describing(graph)
        self.fingerprint = traversal.fingerprint(graph)
        self.options: dict[str, list[Strategy]] = {}  # by node that writes no variable
        self._position: dict[str, int] = {}  # among the nodes of its signature
        known: dict[str, list[Strategy]] = {}
        met: collections.Counter[str] = collections.Counter()
        for node in graph:
            if node.op in (CONST, PLACEHOLDER, VARIABLE) or node.writes:
                continue
            described = self.describing(node)
            if described is None:
                self.options[node.name] = [Strategy((None,) * len(self.factors), home=True)]
                continue
            signature = described.signature
            if signature not in known:
                known[signature] = list(forced(described, self.factors))
            self.options[node.name] = known[signature]
            self._position[node.name] = met[signature]
            met[signature] += 1
        # By the first of the variables that are written together.
        self.written = {
            group[0]: (group, list(self._written(group))) for group in written_together(graph)
        }

    @property
    def turns(self) -> int:
        """The number of plans after which every strategy of every signature was forced."""
        counts = [len(o) for o in self.options.values()]
        counts += [len(options) for _, options in self.written.values()]
        return max(counts, default=1)

    def plan(self, turn: int, seed: int) -> Plan:
        rng = random.Random(seed)
        none = Layout((None,) * len(self.factors))
        of_variable = {
            name: random_layout(v.spec.region_shape, len(self.factors), rng)
            for name, v in self.graph.variables.items()
        }
        chosen: dict[str, Strategy] = {}
        for n, (group, options) in enumerate(self.written.values()):
            layout, writers = options[(turn + n) % len(options)]
            of_variable.update(dict.fromkeys(group, layout))
            chosen.update(writers)
        for name, options in self.options.items():
            chosen[name] = options[(turn + self._position.get(name, 0)) % len(options)]
        versions = traversal.version_variables(self.graph)
        layouts: dict[Ref, Layout] = {}
        for node in self.graph:
            for ref in node.refs:
                if ref in versions:
                    layouts[ref] = of_variable[versions[ref]]
                elif node.op == CONST:
                    layouts[ref] = none
                else:
                    shape = self.graph.spec(ref).region_shape
                    layouts[ref] = random_layout(shape, len(self.factors), rng)
        return Plan(self.machine, layouts, chosen, self.fingerprint)

    def _written(self, group: Sequence[str]) -> Iterator[tuple[Layout, Mapping[str, Strategy]]]:
        """Every layout of variables that are written together, with how their writers work then."""
        writers = [n for n in self.graph if set(n.writes) & set(group)]
        home = Strategy((None,) * len(self.factors), home=True)
        yield Layout(home.axes, home=True), {n.name: home for n in writers}
        if any(self.describing(n) is None for n in writers):
            return
        shape = self.graph.variables[group[0]].spec.shape
        dims = [None, *(d for d, n in enumerate(shape) if n > 1)]
        for cuts in itertools.product(dims, repeat=len(self.factors)):
            found = {n.name: self._writing(n, cuts) for n in writers}
            if all(found.values()):
                most = max(len(f) for f in found.values())
                for v in range(most):
                    yield Layout(cuts), {name: f[v % len(f)] for name, f in found.items()}

    def _writing(self, node: Node, cuts: tuple[int | None, ...]) -> list[Strategy]:
        """The strategies, a body each, under which a node writes where its variables lie so."""
        described = self.describing(node)
        assert described is not None
        found = []
        for applied in described.applied:
            own = applied.description.writes[len(node.outputs) - len(node.writes) :]
            named = {
                tuple(None if c is None or w.dims[c] is None else w.dims[c].axis for c in cuts)
                for w in own
            }
            axes = named.pop()
            cut = sum(c is not None for c in cuts)
            if named or sum(a is not None for a in axes) < cut:
                continue
            if strategies.is_legal(applied.description, axes, self.factors):
                found.append(Strategy(axes, body=applied.variant.name))
        return found


def forced(described: Described, factors: tuple[int, ...]) -> Iterator[Strategy]:
    """Every legal strategy of every body that cuts something; where there is none, the whole op
    by every worker.
    """
    whole = (None,) * len(factors)
    for applied in described.applied:
        legal = [a for a in _axes(applied, len(factors)) if a != whole]
        legal = [a for a in legal if strategies.is_legal(applied.description, a, factors)]
        for axes in legal or [whole]:
            yield Strategy(axes, body=applied.variant.name)


def _axes(applied: Applied, cuts: int) -> Iterator[tuple[str | None, ...]]:
    return itertools.product((None, *applied.axes), repeat=cuts)


def written_together(graph: Graph) -> list[list[str]]:
    """Variables, those that some node writes at once in one list."""
    group: dict[str, list[str]] = {}
    for node in graph:
        joined = [group.get(v, [v]) for v in node.writes]
        merged = list(dict.fromkeys(itertools.chain(*joined)))
        group.update(dict.fromkeys(merged, merged))
    return list({id(g): g for g in group.values()}.values())
