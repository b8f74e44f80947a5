"""Losses and metrics: every key of the history as on one device, whatever is weighted by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.end_to_end import oracle

L, Ls, M = keras.layers, keras.losses, keras.metrics
R = np.random.RandomState(0)
ROWS, BATCH, K, FEATURES, HIDDEN, CLASSES = 37, 8, 4, 19, 20, 17
X = R.rand(ROWS, FEATURES)
DIGITS = R.randint(0, CLASSES, ROWS)
ONE_HOT = np.eye(CLASSES)[DIGITS]
TRUTHS = R.randint(0, 2, (ROWS, CLASSES)).astype(float)
SIGNS = 2 * TRUTHS - 1
REAL, SHARES = R.rand(ROWS, CLASSES), R.dirichlet(np.ones(CLASSES), ROWS)
WEIGHTS = R.rand(ROWS)
SINGLE = "float32"  # in_top_k knows no other


class Penalised(L.Layer):
    """Its input, whose size is a loss and whose mean is a metric."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * tf.reduce_sum(tf.square(x)) / tf.cast(tf.shape(x)[0], x.dtype))
        self.add_metric(tf.reduce_mean(x), name="mean_activation")
        return x


def three_outputs() -> keras.Model:
    x = L.Input((FEATURES,))
    regularizer = keras.regularizers.L1L2(0.001, 0.002)
    h = L.Dense(HIDDEN, "tanh", kernel_regularizer=regularizer, name="hidden")(x)
    h = Penalised()(L.ActivityRegularization(0.001, 0.002)(h))
    digit = L.Dense(CLASSES, "softmax", name="digit", bias_regularizer=regularizer)(h)
    truth = L.Dense(CLASSES, "sigmoid", name="truth", activity_regularizer="l2")(h)
    real = L.Dense(CLASSES, name="real")(h)
    model = keras.Model(x, {"digit": digit, "truth": truth, "real": real})
    model.add_loss(0.1 * tf.reduce_mean(tf.square(real)))
    model.add_metric(tf.reduce_max(real), name="largest", aggregation="mean")
    model.compile(
        keras.optimizers.Adam(0.01),
        {"digit": "sparse_categorical_crossentropy", "truth": "binary_crossentropy", "real": "mse"},
        loss_weights={"digit": 0.5, "truth": 2.0, "real": 1.5},
        metrics={"truth": [M.AUC(name="auc"), M.BinaryAccuracy(), M.Precision()], "real": ["mae"]},
        weighted_metrics={"digit": ["accuracy"], "truth": [M.BinaryAccuracy(name="weighted")]},
    )
    return model


def one_output() -> keras.Model:
    layers = [L.Input((FEATURES,)), L.Dense(HIDDEN, "tanh", name="hidden"), Penalised()]
    model = keras.Sequential([*layers, L.Dense(CLASSES, "softmax", name="digit")])
    metrics = {"metrics": [M.SparseTopKCategoricalAccuracy(3)], "weighted_metrics": ["accuracy"]}
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", **metrics)
    return model


THREE = {"digit": DIGITS, "truth": TRUTHS, "real": REAL}


def test_three_outputs_with_all_that_counts():
    options: dict[str, Any] = {"validation_data": (X[:8], {k: y[:8] for k, y in THREE.items()})}
    check(three_outputs, THREE, None, validation_batch_size=BATCH, **options)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    "weights",
    [WEIGHTS, {"digit": WEIGHTS, "truth": WEIGHTS[::-1], "real": WEIGHTS**2}],
    ids=["for all", "for each output"],
)
def test_sample_weights(weights, k):
    check(three_outputs, THREE, weights, k)


@pytest.mark.parametrize("k", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_class_weights(k):
    weights = {digit: 1.0 + digit for digit in range(CLASSES)}
    check(one_output, DIGITS, None, k, SINGLE, class_weight=weights)


def check(
    make: Callable[[], keras.Model],
    y: Any,
    weights: Any = None,
    k: int = K,
    dtype: str = "float64",
    **fit: Any,
) -> keras.Model:
    data = (X, y) if weights is None else (X, y, weights)
    if dtype == "float64":
        make, fit["tolerance"] = oracle.in_float64(make), oracle.FLOAT64
    return oracle.check(make, data, k, batch=BATCH, **fit)


# head's activation, targets, loss
Row = tuple[Any, np.ndarray, Any]
LOSSES: dict[str, Row] = {
    "mse": (None, REAL, Ls.MeanSquaredError()),
    "mse, summed": (None, REAL, Ls.MeanSquaredError(reduction="sum")),
    "mae": (None, REAL, Ls.MeanAbsoluteError()),
    "mape": (None, REAL + 0.5, Ls.MeanAbsolutePercentageError()),
    "msle": ("sigmoid", REAL, Ls.MeanSquaredLogarithmicError()),
    "huber": (None, 3 * REAL, Ls.Huber(0.7)),
    "log_cosh": (None, REAL, Ls.LogCosh()),
    "cosine": (None, REAL, Ls.CosineSimilarity()),
    "poisson": ("softplus", REAL, Ls.Poisson()),
    "kld": ("softmax", SHARES, Ls.KLDivergence()),
    "binary": ("sigmoid", TRUTHS, Ls.BinaryCrossentropy()),
    "binary, logits, smoothed": (
        None,
        TRUTHS,
        Ls.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
    ),
    "focal": ("sigmoid", TRUTHS, Ls.BinaryFocalCrossentropy(apply_class_balancing=True)),
    "focal, logits": (None, TRUTHS, Ls.BinaryFocalCrossentropy(from_logits=True)),
    "categorical, smoothed": ("softmax", ONE_HOT, Ls.CategoricalCrossentropy(label_smoothing=0.1)),
    "categorical, logits": (None, ONE_HOT, Ls.CategoricalCrossentropy(from_logits=True)),
    "categorical focal": ("softmax", ONE_HOT, Ls.CategoricalFocalCrossentropy()),
    "categorical focal, logits": (
        None,
        ONE_HOT,
        Ls.CategoricalFocalCrossentropy(from_logits=True),
    ),
    "categorical hinge": (None, ONE_HOT, Ls.CategoricalHinge()),
    "sparse": ("softmax", DIGITS, Ls.SparseCategoricalCrossentropy()),
    "sparse, logits": (None, DIGITS, Ls.SparseCategoricalCrossentropy(from_logits=True)),
}
# These look at the labels first, and convert them if they are 0 and 1.
HINGES: dict[str, Row] = {
    "hinge": (None, SIGNS, Ls.Hinge()),
    "hinge of truths": (None, TRUTHS, Ls.Hinge()),
    "squared hinge": (None, SIGNS, Ls.SquaredHinge()),
}
IGNORED: dict[str, Row] = {
    "sparse, ignoring": (
        None,
        DIGITS,
        Ls.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3),
    ),
}


def key(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_")


def with_losses(table: Mapping[str, Row]) -> keras.Model:
    """One output for each row of the table."""
    x = L.Input((FEATURES,))
    h = L.Dense(HIDDEN, "tanh", name="hidden")(x)
    out = {key(n): L.Dense(CLASSES, a, name=key(n))(h) for n, (a, _, _) in table.items()}
    model = keras.Model(x, out)
    losses = {key(n): loss for n, (_, _, loss) in table.items()}
    model.compile(keras.optimizers.SGD(0.05), losses)
    return model


def targets(table: Mapping[str, Row]) -> dict[str, np.ndarray]:
    return {key(n): y for n, (_, y, _) in table.items()}


@pytest.mark.slow
def test_losses():
    check(lambda: with_losses(LOSSES), targets(LOSSES))


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_losses_with_weights(k):
    check(lambda: with_losses(LOSSES), targets(LOSSES), WEIGHTS, k)


@pytest.mark.slow
def test_losses_that_convert_labels():
    check(lambda: with_losses(HINGES), targets(HINGES))


@pytest.mark.slow
def test_a_class_that_is_ignored():
    """How many rows are left depends on data, so that runs whole."""
    check(lambda: with_losses(IGNORED), targets(IGNORED), undescribed="whole")


# head's activation, targets, metrics
METRICS: dict[str, tuple[Any, np.ndarray, Callable[[], list[Any]]]] = {
    "truths": (
        "sigmoid",
        TRUTHS,
        lambda: [
            M.AUC(),
            M.AUC(curve="PR", summation_method="minoring", name="pr"),
            M.AUC(multi_label=True, num_labels=CLASSES, name="each"),
            M.BinaryAccuracy(),
            M.BinaryCrossentropy(),
            M.Precision(),
            M.Precision([0.3, 0.6], name="at_two"),
            M.Precision(top_k=3, name="of_three"),
            M.Recall(class_id=2),
            M.TruePositives(),
            M.TrueNegatives(),
            M.FalsePositives(),
            M.FalseNegatives(),
        ],
    ),
    "signs": (None, SIGNS, lambda: [M.CosineSimilarity()]),
    "reals": (
        None,
        REAL,
        lambda: [
            M.MeanSquaredError(),
            M.RootMeanSquaredError(),
            M.MeanAbsoluteError(),
            M.MeanAbsolutePercentageError(),
            M.MeanRelativeError(np.ones(CLASSES)),
            M.LogCoshError(),
            M.R2Score(),
            M.Accuracy(),
        ],
    ),
    "shares": (
        "softmax",
        SHARES,
        lambda: [M.KLDivergence(), M.Poisson(), M.MeanSquaredLogarithmicError()],
    ),
    "ones": (
        "softmax",
        ONE_HOT,
        lambda: [
            M.CategoricalAccuracy(),
            M.CategoricalCrossentropy(),
            M.CategoricalHinge(),
            M.TopKCategoricalAccuracy(3),
        ],
    ),
    "digits": (
        "softmax",
        DIGITS,
        lambda: [
            M.SparseCategoricalAccuracy(),
            M.SparseCategoricalCrossentropy(),
            M.SparseTopKCategoricalAccuracy(3),
        ],
    ),
}
# Of these Keras cannot weight rows.
UNWEIGHTED = {
    "truths": (
        "sigmoid",
        TRUTHS,
        lambda: [M.F1Score(threshold=0.5), M.FBetaScore("micro", 2.0, 0.4)],
    ),
    "ones": ("softmax", ONE_HOT, lambda: [M.F1Score()]),
}
# These convert labels, look for invalid ones or find where a rate is reached.
CONDITIONAL = {
    "signs": (None, SIGNS, lambda: [M.Hinge(), M.SquaredHinge()]),
    "overlaps": (
        "softmax",
        ONE_HOT,
        lambda: [M.OneHotIoU(CLASSES, [1, 2]), M.OneHotMeanIoU(CLASSES)],
    ),
    "binary overlaps": ("sigmoid", TRUTHS, lambda: [M.BinaryIoU([0, 1])]),
    "rates": (
        "sigmoid",
        TRUTHS,
        lambda: [
            M.PrecisionAtRecall(0.5),
            M.RecallAtPrecision(0.4),
            M.SensitivityAtSpecificity(0.5),
            M.SpecificityAtSensitivity(0.5),
        ],
    ),
}


def with_metrics(table: Mapping[str, Any], kind: str = "metrics") -> keras.Model:
    x = L.Input((FEATURES,))
    h = L.Dense(HIDDEN, "tanh", name="hidden")(x)
    out = {key(n): L.Dense(CLASSES, a, name=key(n))(h) for n, (a, _, _) in table.items()}
    model = keras.Model(x, out)
    losses = {
        key(n): "sparse_categorical_crossentropy" if y is DIGITS else "mse"
        for n, (_, y, _) in table.items()
    }
    metrics = {key(n): make() for n, (_, _, make) in table.items()}
    model.compile(keras.optimizers.SGD(0.05), losses, **{kind: metrics})
    return model


@pytest.mark.slow
@pytest.mark.parametrize("table", [METRICS, UNWEIGHTED], ids=["weightable", "unweightable"])
def test_metrics(table):
    check(lambda: with_metrics(table), targets(table), dtype=SINGLE)


@pytest.mark.slow
def test_metrics_that_are_weighted():
    check(
        lambda: with_metrics(METRICS, "weighted_metrics"), targets(METRICS), WEIGHTS, dtype=SINGLE
    )


@pytest.mark.slow
def test_metrics_with_conditions():
    check(lambda: with_metrics(CONDITIONAL), targets(CONDITIONAL), undescribed="whole")
