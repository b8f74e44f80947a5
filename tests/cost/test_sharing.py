"""What several readers of a tensor cost together: the distinct transfers, one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tofu_tf.cost.candidates import Stack
from tofu_tf.cost.communication import fetched, held_stack
from tofu_tf.cost.sharing import distinct, needs_of, shared, union
from tofu_tf.plan import transfers
from tofu_tf.plan.layouts import Layout
from tofu_tf.tdl.regions import Regions

SHAPE = (9, 10)


def layouts(cuts: int) -> tuple[Layout, ...]:
    return tuple(Layout(c) for c in itertools.product((None, 0, 1), repeat=cuts))


def random_needs(workers: int, n: int, seed: int) -> Stack:
    """Boxes of a few sizes, so that some are equal; some workers need nothing."""
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, 2, (n, workers, 2)) * np.array([4, 5])
    hi = np.minimum(lo + rng.integers(1, 3, (n, workers, 2)) * np.array([4, 5]), SHAPE)
    return Stack(lo, hi, rng.random((n, workers)) < 0.8)


def transferred(held: Regions, needs: list[Regions], factors: tuple[int, ...]) -> int:
    paid = {
        (w, part.source, part.region)
        for need in needs
        for w, parts in enumerate(transfers.fetch_parts(held, need, factors))
        for part in parts
        if part.source != w
    }
    return sum(region.size for _, _, region in paid)


@pytest.mark.parametrize("factors", [(2,), (3,), (2, 2), (3, 2)])
@pytest.mark.parametrize("readers", [1, 2, 3])
def test_equal_regions_move_once(factors: tuple[int, ...], readers: int) -> None:
    workers = int(np.prod(factors))
    held = held_stack(layouts(len(factors)), SHAPE, factors)
    needs = [random_needs(workers, 4, seed) for seed in range(readers)]
    table = shared(held, needs)
    assert table.shape == (len(held.lo), *(4,) * readers)
    for at in itertools.product(*map(range, table.shape)):
        chosen = [n.at(i) for n, i in zip(needs, at[1:], strict=True)]
        assert table[at] == transferred(held.at(at[0]), chosen, factors)
    if readers == 1:
        np.testing.assert_array_equal(table, fetched(held, needs[0]).T)


@pytest.mark.parametrize("factors", [(2,), (2, 2), (3, 2)])
def test_sets_of_needs(factors: tuple[int, ...]) -> None:
    workers = int(np.prod(factors))
    held = held_stack(layouts(len(factors)), SHAPE, factors)
    need = random_needs(workers, 4, 7)
    costs = union(held, need)
    for layout in range(len(held.lo)):
        for number in range(1 << 4):
            chosen = [need.at(i) for i in range(4) if number >> i & 1]
            assert costs[layout, number] == transferred(held.at(layout), chosen, factors)


def test_distinct_needs() -> None:
    stack = random_needs(3, 6, 1)
    twice = Stack(*(np.concatenate([a, a]) for a in (stack.lo, stack.hi, stack.present)))
    need = needs_of(twice)
    assert len(need.stack.lo) <= 6
    for way, n in enumerate(need.index.tolist()):
        assert need.stack.at(n).tuple() == twice.at(way).tuple()
    every, numbers = distinct([stack, need.stack])
    assert len(every.lo) == len(need.stack.lo)
    assert [every.at(n).tuple() for n in numbers[0]] == [stack.at(i).tuple() for i in range(6)]
