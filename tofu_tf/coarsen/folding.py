"""Groups and operators that look alike: the same cell at every step of time, the same block."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

from tofu_tf.coarsen.groups import Coarse


@dataclasses.dataclass(frozen=True)
class Folds:
    """For every group the first of those that look like it, and for every operator likewise."""

    groups: tuple[int, ...]
    operators: tuple[int, ...]


def unfolded(coarse: Coarse) -> Folds:
    """Every group and operator apart."""
    return Folds(tuple(range(len(coarse.groups))), tuple(range(len(coarse.operators))))


def folds_of(coarse: Coarse, weights: Sequence[tuple[int, ...]], rounds: int) -> Folds:
    """What looks alike up to `rounds` operators away (colour refinement, so many times)."""
    groups = _numbered([(g.shape, g.itemsize, g.fixed) for g in coarse.groups])
    kinds: list[Hashable] = []
    for operator, weight in zip(coarse.operators, weights, strict=True):
        local = {g: n for n, g in enumerate(operator.groups)}
        slots = tuple(local.get(g, g) for g in (*operator.inputs, *operator.outputs))
        signature = operator.described.signature if operator.described is not None else ""
        shapes = (operator.input_shapes, operator.output_shapes)
        rest = (operator.place, operator.versions, operator.once, operator.internal)
        kinds.append((signature, shapes, rest, slots, weight, len(operator.nodes)))
    operators = _numbered(kinds)
    for _ in range(rounds):
        around: list[list[tuple[int, int]]] = [[] for _ in coarse.groups]
        for operator, kind in zip(coarse.operators, operators, strict=True):
            for slot, g in enumerate((*operator.inputs, *operator.outputs)):
                if g >= 0:
                    around[g].append((kind, slot))
        groups = _numbered(
            [(own, tuple(sorted(set(seen)))) for own, seen in zip(groups, around, strict=True)]
        )
        operators = _numbered(
            [
                (own, tuple(groups[g] if g >= 0 else g for g in (*o.inputs, *o.outputs)))
                for own, o in zip(operators, coarse.operators, strict=True)
            ]
        )
    return Folds(_firsts(groups), _firsts(operators))


def _numbered(colours: Sequence[Hashable]) -> list[int]:
    known: dict[Hashable, int] = {}
    return [known.setdefault(colour, len(known)) for colour in colours]


def _firsts(colours: Sequence[int]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(first.setdefault(colour, n) for n, colour in enumerate(colours))
