"""Sets of tensors cut alike: a variable's versions, and what element-wise operators join."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tofu_tf import errors
from tofu_tf.graph import traversal
from tofu_tf.graph.ir import Graph, Node, Ref
from tofu_tf.plan.layouts import Layout


class Ties:
    """Union-find over tensors; a set keeps the one layout that was asked for one of its members."""

    def __init__(self, wanted: Mapping[Ref, Layout]) -> None:
        self._parent: dict[Ref, Ref] = {}
        self._wanted = dict(wanted)

    def find(self, ref: Ref) -> Ref:
        root = ref
        while (parent := self._parent.get(root, root)) != root:
            root = parent
        while (parent := self._parent.get(ref, ref)) != root:
            self._parent[ref], ref = root, parent
        return root

    def wanted(self, ref: Ref) -> Layout | None:
        return self._wanted.get(self.find(ref))

    def tie(self, a: Ref, b: Ref) -> bool:
        """Whether both are now in one set: not when different layouts were asked for them."""
        first, second = self.find(a), self.find(b)
        if first == second:
            return True
        asked = [self._wanted[r] for r in (first, second) if r in self._wanted]
        if len(asked) == 2 and asked[0] != asked[1]:
            return False
        self._parent[second] = first
        if asked:
            self._wanted[first] = asked[0]
        return True


def tie_versions(graph: Graph, ties: Ties) -> None:
    """Ties every variable's versions.

    Raises:
      ConstraintError: two of them were asked to lie differently.
    """
    for name, refs in traversal.versions(graph).items():
        for ref in refs[1:]:
            if not ties.tie(refs[0], ref):
                raise errors.ConstraintError(
                    f"variable {name}",
                    f"its versions {refs[0]} and {ref} are asked to lie differently",
                    "one layout: a variable lies as it is written",
                    "constrain the variable only",
                )


def tie_elementwise(
    graph: Graph,
    elementwise: Callable[[Node], bool],
    candidates: Collection[Ref],
    ties: Ties,
) -> None:
    """Ties the same-shaped, same-width `candidates` around every element-wise node.

    Names play no part; tensors of other element width stay apart, since their bytes weigh
    differently.
    """
    for node in graph:
        if not node.outputs or not elementwise(node):
            continue
        around = [r for r in (*node.refs, *node.inputs) if r in candidates]
        heads: dict[tuple[tuple[int, ...], int], Ref] = {}
        outputs = {(s.shape, s.itemsize) for s in node.outputs}
        for ref in around:
            spec = graph.spec(ref)
            key = (spec.shape, spec.itemsize)
            if key in outputs:
                ties.tie(heads.setdefault(key, ref), ref)
