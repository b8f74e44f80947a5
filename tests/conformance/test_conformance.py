"""Every registered op, whole and in pieces, on its own samples."""

from __future__ import annotations

import pytest

import tofu_tf.ops  # noqa: F401  fills the registry
from tests.conformance import running
from tofu_tf.ops.registry import REGISTRY, OpEntry, Sample

CASES = [
    pytest.param(entry, sample, id=f"{name}-{n}")
    for name, entry in REGISTRY.items()
    for n, sample in enumerate(entry.samples)
]


@pytest.mark.parametrize("entry, sample", CASES)
def test_pieces_equal_the_whole(entry: OpEntry, sample: Sample) -> None:
    case = running.case_of(entry, sample)
    running.check_axes(case)
    assert running.check_pieces(case) > 0, "no cut of this sample is legal"


def test_every_op_has_samples() -> None:
    assert REGISTRY
    assert [name for name, entry in REGISTRY.items() if not entry.samples] == []
