"""Tensors brought from where they were made to where they are owned: sent, reduced, spread."""

from __future__ import annotations

from tofu_tf.plan.transfers import Parts, fetch_parts, route
from tofu_tf.rewrite import naming
from tofu_tf.rewrite.building import Building
from tofu_tf.rewrite.fetching import divided, joined, sliced
from tofu_tf.rewrite.reducing import combined
from tofu_tf.tdl.regions import IntArray, Region, Regions

Names = list["str | None"]  # a tensor per worker


class Moves:
    """Makes transfers; `slices` holds what was cut of a tensor, each region once."""

    def __init__(self, make: Building, factors: tuple[int, ...]) -> None:
        self.make, self.factors = make, factors
        self.workers = len(make.devices)
        self.slices: dict[tuple[str, Region], str] = {}

    def routed(
        self,
        node: str,
        part: str,
        made: Names,
        written: Regions,
        partial: IntArray,
        reducer: str | None,
        owned: Regions,
        dtype: str,
    ) -> Names:
        """Every worker's `owned` region of what the pieces `made` (partial results, or parts that
        lie otherwise): see `transfers.route`.
        """
        way = route(written, partial, owned)
        below = f"{part}/" if part else ""
        fetched = [
            self.moved(node, f"{below}partial{n}" if len(way.partials) > 1 else f"{below}moved",
                        made, held, way.middle, dtype)
            for n, held in enumerate(way.partials)
        ]  # fmt: skip
        middle: Names = [None] * self.workers
        for w in range(self.workers):
            terms = [names[w] for names in fetched]
            present = [t for t in terms if t is not None]
            if present:
                name = naming.piece(node, w, f"{below}reduced")
                middle[w] = combined(self.make, reducer or "Sum", present, dtype, w, name)
        if way.middle is not way.owned:
            middle = self._landed(node, f"{below}summed", middle, dtype)
            middle = self.moved(node, f"{below}spread", middle, way.middle, way.owned, dtype)
        return self._landed(node, f"{below}owned", middle, dtype)

    def _landed(self, node: str, part: str, names: Names, dtype: str) -> Names:
        """The same tensors, each on its worker's own device: what a worker owns is sent from
        there.
        """
        out = list(names)
        for w, name in enumerate(names):
            if name is None:
                continue
            device = self.make.nodes[naming.node_of(name)].device
            if device != self.make.devices[w]:
                made = self.make.add(
                    naming.piece(node, w, part), "Identity", w, (name,), {"T": dtype}
                )
                out[w] = naming.tensor(made)
        return out

    def moved(
        self, node: str, part: str, made: Names, held: Regions, need: Regions, dtype: str
    ) -> Names:
        """Every worker's `need` of a tensor of which `made` holds the regions `held`."""
        out: Names = [None] * self.workers
        per_worker = fetch_parts(held, need, self.factors)
        for source, wanted in demand(per_worker).items():
            tensor, region = made[source], held[source]
            assert tensor is not None, "what is held was made"
            assert region is not None
            name = naming.piece(node, source, f"{part}/parts")
            cut = divided(self.make, tensor, region, wanted, dtype, source, name)
            self.slices.update({(tensor, r): piece for r, piece in cut.items()})
        for w, parts in enumerate(per_worker):
            tensors = []
            for p in parts:
                tensor, region = made[p.source], held[p.source]
                assert tensor is not None, "what is held was made"
                assert region is not None
                key = (tensor, p.region)
                if key not in self.slices:
                    name = naming.piece(node, p.source, f"{part}/to{w}")
                    self.slices[key] = sliced(
                        self.make, tensor, region, p.region, dtype, p.source, name
                    )
                tensors.append(self.slices[key])
            if parts:
                out[w] = joined(self.make, parts, tensors, dtype, w, naming.piece(node, w, part))
        return out


def demand(per_worker: Parts) -> dict[int, list[Region]]:
    """For each source the distinct regions wanted of it, where there are several."""
    found: dict[int, dict[Region, None]] = {}
    for parts in per_worker:
        for p in parts:
            found.setdefault(p.source, {})[p.region] = None
    return {source: list(regions) for source, regions in found.items() if len(regions) > 1}
