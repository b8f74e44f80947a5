"""Batches of several sizes in one training: each is planned around where the variables lie."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.end_to_end import oracle
from tests.end_to_end.test_training import images, sgd


@pytest.mark.parametrize("name, k", [("mlp", 3), ("cnn", 4), ("wide_resnet", 4)])
def test_full_and_smaller_batches_in_float64(name, k):
    """16 + 16 + 5 rows to train, 16 + 3 to validate, twice: off by roundings only."""
    sizes = {"filters": (4, 8, 12), "width": 1} if name == "wide_resnet" else {}
    make = oracle.in_float64(
        functools.partial(sgd, name, input_shape=(6, 6, 1), momentum=0.9, **sizes)
    )
    x, y = images(37, (6, 6, 1))
    x = x.astype("float64")
    model = oracle.check(
        make,
        (x, y),
        k,
        batch=16,
        epochs=2,
        validation_data=(x[:19], y[:19]),
        validation_batch_size=16,
        tolerance=oracle.FLOAT64,
    )
    kinds = sorted(step.kind for step in oracle.steps(model))
    assert kinds == ["test", "test", "train", "train"]
    lies = {}
    for step in oracle.steps(model):
        for variable in step.captured.graph.variables:
            assert lies.setdefault(variable, step.layout(variable)) == step.layout(variable)


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_workers(rows):
    make = oracle.in_float64(
        functools.partial(sgd, "cnn", input_shape=(6, 6, 1), filters=(4, 4), width=16)
    )
    x, y = images(4 * rows, (6, 6, 1))
    oracle.check(make, (x.astype("float64"), y), 4, batch=rows, tolerance=oracle.FLOAT64)


def test_rows_are_predicted_in_order():
    make = functools.partial(sgd, "cnn", filters=(4, 4), width=16)
    x, _ = images(21)
    expected = oracle.made(make).predict(x, batch_size=8, verbose=0)
    got = oracle.distributed(make, 3).predict(x, batch_size=8, verbose=0)
    np.testing.assert_allclose(got, expected, **oracle.FLOAT32)
