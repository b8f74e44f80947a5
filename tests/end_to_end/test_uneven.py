"""Sizes that do not divide by the number of workers."""

from __future__ import annotations

import numpy as np
import pytest
import tf_keras as keras

from tests.end_to_end import oracle
from tofu_tf import errors
from tofu_tf.graph.ir import CONST
from tofu_tf.plan.layouts import layout_regions
from tofu_tf.runtime import variables

R = np.random.RandomState(0)
X, Y = R.rand(30, 30).astype("float32"), R.randint(0, 7, 30)
IDS = R.randint(0, 17, (30, 3))
WORKERS = [2, 3, 4, 5, 8]


def mlp(features: int = 30, hidden: int = 13, classes: int = 7) -> keras.Model:
    layers = [
        keras.layers.Input((features,)),
        keras.layers.Dense(hidden, "relu", name="hidden"),
        keras.layers.Dense(classes, name="logits"),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("k", WORKERS)
def test_sizes_13_and_7_in_batches_of_6(k):
    """Most of it is too small to be cut."""
    assert_plan_is_explained(oracle.check(mlp, (X, Y), k, batch=6))


def words(vocabulary: int = 17, width: int = 10, hidden: int = 13, classes: int = 7) -> keras.Model:
    layers = [
        keras.layers.Input((3,), dtype="int64"),
        keras.layers.Embedding(vocabulary, width, name="table"),
        keras.layers.Flatten(),
        keras.layers.Dense(hidden, "relu", name="hidden"),
        keras.layers.Dense(classes, name="logits"),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("k", [2, 5, *(pytest.param(k, marks=pytest.mark.slow) for k in (3, 4, 8))])
def test_17_words_in_10_dimensions(k):
    """cases.md 1."""
    assert_plan_is_explained(oracle.check(words, (IDS, Y), k, batch=6))


@pytest.mark.parametrize(
    "k, layout",
    [
        (2, (None, "d0")),
        (3, ("d0", None)),
        *(pytest.param(k, ("d0", None), marks=pytest.mark.slow) for k in (2, 5)),
        *(pytest.param(k, (None, "d0"), marks=pytest.mark.slow) for k in (3, 5)),
        pytest.param(8, ("d0d1d2", None), marks=pytest.mark.slow),
        pytest.param(8, ("d0d1", "d2"), marks=pytest.mark.slow),
        pytest.param(4, ("d0", "d1"), marks=pytest.mark.slow),
    ],
)
def test_a_table_of_17_words_is_cut(k, layout):
    """By words and by dimensions, at sizes that would not be cut otherwise."""
    model = oracle.check(words, (IDS, Y), k, batch=6, constraints={"table/embeddings": layout})
    assert_plan_is_explained(model)
    (table,) = (v for v in model.weights if "table" in v.name)
    assert len(set(variables.sharding_of(table).parts)) == k


def test_a_table_cannot_be_cut_in_more_parts_than_it_has_words():
    constraints = {"table/embeddings": ("d0d1d2", None)}
    with pytest.raises(errors.ConstraintError) as refused:
        oracle.distributed(lambda: words(7), 8, constraints=constraints, batch=(IDS[:6], Y[:6]))
    for text in ("table/embeddings", "axis 0", "7", "k = 8"):
        assert text in str(refused.value)


@pytest.mark.parametrize("k", WORKERS)
def test_sizes_53_and_29_in_batches_of_11(k):
    """All weights and activations are large enough to be cut; every prime leaves a rest."""
    x, y = R.rand(55, 37).astype("float32"), R.randint(0, 29, 55)
    model = oracle.check(lambda: mlp(37, 53, 29), (x, y), k, batch=11)
    assert_plan_is_explained(model)
    kernels = [v for v in model.weights if "kernel" in v.name]
    assert all(len(set(variables.sharding_of(v).parts)) == k for v in kernels)


def assert_plan_is_explained(model: keras.Model) -> None:
    """A reason for every tensor that is not cut; shards that differ by one slice at most."""
    (step,) = oracle.steps(model)
    plan, graph = step.plan, step.captured.graph
    not_cut = {ref for ref, layout in plan.layouts.items() if layout.replicated or layout.home}
    decided = {ref for ref in not_cut if graph.nodes[ref.node].op != CONST}
    assert decided
    assert decided <= {ref for ref, reason in plan.reasons.items() if reason}
    for ref, layout in plan.layouts.items():
        shape = graph.spec(ref).shape
        owned = layout_regions(layout, shape, plan.machine.factors)
        for d, cuts in enumerate(layout.by_dimension(len(shape))):
            if cuts:
                sizes = (owned.hi - owned.lo)[:, d]
                assert sizes.max() - sizes.min() <= 1, f"{ref} {layout}"


@pytest.mark.parametrize("k, axis, size", [(3, "hidden/kernel", 13), (5, "logits/kernel", 7)])
def test_a_forced_uneven_cut(k, axis, size):
    model = oracle.check(mlp, (X, Y), k, batch=6, constraints={axis: (None, "d0")})
    (kernel,) = (v for v in model.weights if v.name.startswith(axis))
    parts = variables.sharding_of(kernel).parts
    widths = sorted(p.region.shape[1] for p in parts)
    assert len(parts) == k
    assert sum(widths) == size
    assert widths[-1] - widths[0] == 1


@pytest.mark.parametrize(
    "k, constraints, named",
    [
        # More parts than the axis has elements.
        (8, {"logits/kernel": (None, "d0d1d2")}, ["logits/kernel", "axis 1", "7", "k = 8"]),
        (8, {"hidden/bias": ("d3",)}, ["hidden/bias", "dimension 0"]),
        (2, {"hidden/kernel": ("d0", "d0")}, ["hidden/kernel", "d0", "0 and 1"]),
        (2, {"hiden/kernel": ("d0", None)}, ["hiden/kernel", "hidden/kernel"]),
        # All offenders in one message.
        (8, {"*/bias": ("d0d1d2",), "hidden/kernel": ("d0",)}, ["*/bias", "hidden/kernel"]),
    ],
)  # fmt: skip
def test_a_cut_that_cannot_be_is_refused_at_once(k, constraints, named):
    with pytest.raises(errors.ConstraintError) as refused:
        oracle.distributed(mlp, k, constraints=constraints, batch=(X[:6], Y[:6]))
    for text in named:
        assert text in str(refused.value)
