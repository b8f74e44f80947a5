"""Parts of a random tensor: the whole's numbers bit for bit, or a stream for each box."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running
from tofu_tf.graph.attributes import INDEPENDENT, encode
from tofu_tf.ops.registry import REGISTRY, Piece
from tofu_tf.tdl.regions import Region

Box = tuple[tuple[int, int], ...]
OPS = [name for name in REGISTRY if name.startswith("Stateless") and "Key" not in name]
CASES = [(name, n) for name in OPS for n in range(len(REGISTRY[name].samples))]


def drawn(case: running.Case, box: Box, independent: bool = False) -> np.ndarray:
    """What the body makes of one box."""
    emit = running.Eager()
    entry = REGISTRY[case.node.op]
    node, attributes = case.node, case.described.attributes
    if independent:
        node = dataclasses.replace(node, attrs={**node.attrs, INDEPENDENT: encode(True)})
        attributes = {**attributes, INDEPENDENT: True}
    inputs = tuple(emit.give(tf.constant(x)) for x in case.inputs)
    description = case.described.applied[0].description
    piece = Piece(
        node,
        {f"i{d}": bounds for d, bounds in enumerate(box)},
        description.extents,
        (),
        (None,) * len(inputs),
        (Region(box),),
        inputs,
        case.described.constants,
        attributes,
    )
    (name,) = entry.variants[0].body(emit, piece)
    return np.asarray(emit.tensors[name])


def boxes(shape: tuple[int, ...]) -> list[Box]:
    """Every box of the shape, but only some intervals of a long dimension."""
    ranges = [
        [
            (lo, hi)
            for lo in range(n)
            for hi in range(lo + 1, n + 1)
            if n < 5 or hi - lo in (1, 3, n)
        ]
        for n in shape
    ]
    return list(itertools.product(*ranges))


@pytest.mark.parametrize("name, n", CASES)
def test_every_box_has_the_bits_of_the_whole(name: str, n: int) -> None:
    case = running.case_of(REGISTRY[name], REGISTRY[name].samples[n])
    (whole,) = case.outputs
    for box in boxes(whole.shape)[:: max(1, len(boxes(whole.shape)) // 40)]:
        found = drawn(case, box)
        expected = whole[tuple(slice(lo, hi) for lo, hi in box)]
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes(), box


def test_an_independent_box_is_itself_everywhere_and_no_other() -> None:
    entry = REGISTRY["StatelessRandomUniformV2"]
    case = running.case_of(entry, entry.samples[0])
    (whole,) = case.outputs
    every = tuple((0, n) for n in whole.shape)
    assert drawn(case, every, independent=True).tobytes() == whole.tobytes()
    grid: list[Box] = list(itertools.product([(0, 3), (3, 6)], [(0, 2), (2, 4)]))
    streams = [drawn(case, box, independent=True) for box in grid]
    for box, values in zip(grid, streams, strict=True):
        assert drawn(case, box, independent=True).tobytes() == values.tobytes()
        assert values.shape == tuple(hi - lo for lo, hi in box)
        assert np.all((values >= 0) & (values < 1))
    for one, other in itertools.combinations(streams, 2):
        assert not np.isin(one, other).any()
