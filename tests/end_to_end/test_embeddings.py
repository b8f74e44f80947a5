"""Embeddings: tables cut by rows and by columns, with gradients of the rows looked up only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tofu_tf
from tests.end_to_end import oracle
from tofu_tf.rewrite.exporting import with_variables
from tofu_tf.runtime import variables

L, O = keras.layers, keras.optimizers  # noqa: E741
R = np.random.RandomState(0)
VOCABULARY, WIDTH, WORDS, BATCH, CLASSES = 1003, 16, 5, 8, 7
# ids that repeat within a batch, and from batch to batch
IDS = R.choice([0, 1, 2, 17, 300, 301, 777, VOCABULARY - 1, *range(500, 520)], (3 * BATCH, WORDS))
Y = R.rand(3 * BATCH, CLASSES).astype("float32")
LABELS = R.randint(0, VOCABULARY, 3 * BATCH)
TABLE = "table/embeddings"


def cut(k: int, how: str) -> dict[str, Any] | None:
    """A table's cut along all factors of k: by rows, by columns, or as the plan likes."""
    cuts = {2: "d0", 3: "d0", 4: "d0d1"}[k]
    return {"rows": {TABLE: (cuts, None)}, "columns": {TABLE: (None, cuts)}, "free": None}[how]


def classifier(optimizer: Callable[[], Any]) -> oracle.Make:
    def make() -> keras.Model:
        model = keras.Sequential(
            [
                L.Input((WORDS,), dtype="int64"),
                L.Embedding(VOCABULARY, WIDTH, name="table"),
                L.Flatten(),
                L.Dense(CLASSES),
            ]
        )
        model.compile(optimizer(), "mse")
        return model

    return make


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: O.SGD(0.1),
    "momentum": lambda: O.SGD(0.1, momentum=0.9),
    "nesterov": lambda: O.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: O.Adam(0.01),
    "amsgrad": lambda: O.Adam(0.01, amsgrad=True),
    "adamw": lambda: O.AdamW(0.01),
    "adamax": lambda: O.Adamax(0.01),
    "nadam": lambda: O.Nadam(0.01),
    "adagrad": lambda: O.Adagrad(0.1),
    "adadelta": lambda: O.Adadelta(0.5),
    "rmsprop": lambda: O.RMSprop(0.01),
    "rmsprop centered": lambda: O.RMSprop(0.01, centered=True),
    "rmsprop momentum": lambda: O.RMSprop(0.01, momentum=0.5),
    "rmsprop centered momentum": lambda: O.RMSprop(0.01, momentum=0.5, centered=True),
    "ftrl": lambda: O.Ftrl(0.1),
    "lion": lambda: O.Lion(0.01),
    "adafactor": lambda: O.Adafactor(0.05),
    "clipnorm": lambda: O.Adam(0.01, clipnorm=0.1),
    "global clipnorm": lambda: O.Adam(0.01, global_clipnorm=0.1),
    "clipvalue": lambda: O.Adam(0.01, clipvalue=0.01),
    "average": lambda: O.SGD(0.1, use_ema=True, ema_momentum=0.9),
    "average that overwrites": lambda: O.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "weight decay": lambda: O.SGD(0.1, weight_decay=0.05),
    "loss scale": lambda: keras.mixed_precision.LossScaleOptimizer(O.Adam(0.01), initial_scale=8.0),
    "legacy sgd": lambda: O.legacy.SGD(0.1),
    "legacy momentum": lambda: O.legacy.SGD(0.1, momentum=0.9),
    "legacy nesterov": lambda: O.legacy.SGD(0.1, momentum=0.9, nesterov=True),
    "legacy adam": lambda: O.legacy.Adam(0.01),
    "legacy amsgrad": lambda: O.legacy.Adam(0.01, amsgrad=True),
    "legacy adamax": lambda: O.legacy.Adamax(0.01),
    "legacy adagrad": lambda: O.legacy.Adagrad(0.1),
    "legacy adadelta": lambda: O.legacy.Adadelta(0.5),
    "legacy rmsprop": lambda: O.legacy.RMSprop(0.01),
    "legacy rmsprop momentum": lambda: O.legacy.RMSprop(0.01, momentum=0.5),
    "legacy rmsprop centered": lambda: O.legacy.RMSprop(0.01, momentum=0.5, centered=True),
    "legacy ftrl": lambda: O.legacy.Ftrl(0.1),
    "legacy ftrl shrinkage": lambda: O.legacy.Ftrl(0.1, l2_shrinkage_regularization_strength=0.01),
    "legacy nadam": lambda: O.legacy.Nadam(0.01),
    "legacy clipnorm": lambda: O.legacy.Adam(0.01, clipnorm=0.1),
    "legacy global clipnorm": lambda: O.legacy.Adam(0.01, global_clipnorm=0.1),
    "legacy clipvalue": lambda: O.legacy.SGD(0.1, clipvalue=0.01),
}
# One of each way to use the rows of distinct ids.
USUAL = [
    ("momentum", 2, "rows"),
    ("adam", 3, "rows"),
    ("adamax", 2, "columns"),
    ("adadelta", 3, "rows"),
    ("rmsprop centered momentum", 2, "free"),
    ("legacy adagrad", 3, "columns"),
]
ALL = [(name, k, how) for name in OPTIMIZERS for k in (2, 3) for how in ("rows", "columns", "free")]
EVERY = [
    *USUAL,
    *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in USUAL),
    *(
        pytest.param(name, 4, how, marks=pytest.mark.slow)
        for name in ("adam", "rmsprop", "ftrl", "legacy adamax", "legacy ftrl")
        for how in ("rows", "columns", "free")
    ),
]


def assert_sparse(model: keras.Model) -> None:
    """Nothing runs whole, distinct ids have a known size, and the table is not gathered."""
    (step,) = oracle.steps(model)
    assert not step.plan.whole
    assert "Unique" not in {node.op for node in step.captured.graph}
    (table,) = (v for v in step.captured.graph.variables.values() if v.name == TABLE)
    assert step.plan.predicted_bytes < table.spec.nbytes


@pytest.mark.parametrize("name, k, how", EVERY)
def test_every_optimizer(name: str, k: int, how: str) -> None:
    make = classifier(OPTIMIZERS[name])
    assert_sparse(oracle.check(make, (IDS, Y), k, batch=BATCH, constraints=cut(k, how)))


class Tied(keras.Model):
    """The table that words are looked up in also gives the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = self.add_weight(
            name=TABLE, shape=(VOCABULARY, WIDTH), initializer=keras.initializers.RandomUniform()
        )
        self.trunk = [L.Dense(24, "tanh"), L.Dense(WIDTH)]

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        h = tf.reduce_mean(tf.nn.embedding_lookup(self.table, ids), 1)
        for layer in self.trunk:
            h = layer(h)
        return tf.matmul(h, self.table, transpose_b=True)


def tied(optimizer: Callable[[], Any]) -> oracle.Make:
    def make() -> keras.Model:
        model = Tied()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss)
        model(IDS[:1])
        return model

    return make


def made(step: Any) -> Iterator[tuple[str, str, tf.TensorShape]]:
    """Name, op and shape of every tensor in the placed graph of a step."""
    graph_def = with_variables(step.placed, step.captured.graph)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    for op in graph.get_operations():
        for tensor in op.outputs:
            yield op.name, op.type, tensor.shape


# Ops that yield ids, or take rows out of others, as many as data say: never more than they are
# given.
_FEWER = frozenset({"Where", "GatherV2", "Reshape", "Unique"})
_PADDING = frozenset({"Fill", "ConcatV2"})  # of distinct ids


def first_dimensions(step: Any) -> dict[str, int]:
    """Of every tensor but handles; rows taken out of others count as none."""
    found = {}
    for name, op, shape in made(step):
        if op in ("VarHandleOp", "NoOp") or not shape.rank:
            assert shape.rank is not None, (name, op)
            continue
        if op == "CollectiveGatherV2":  # it does not say its shape, the Reshape after it does
            continue
        some = op in _FEWER or (op in _PADDING and "/Unique" in name)
        assert shape[0] is not None or some, (name, op)
        found[f"{name} ({op})"] = shape[0] or 0
    return found


CASES = [
    ("momentum", "rows"),
    ("adam", "columns"),
    pytest.param("momentum", "columns", marks=pytest.mark.slow),
    pytest.param("adam", "rows", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name, how", CASES)
def test_a_tied_embedding(name: str, how: str) -> None:
    """cases.md 7."""
    make = tied(OPTIMIZERS[name])
    model = oracle.check(make, (IDS, LABELS), 4, batch=BATCH, constraints=cut(4, how))
    (step,) = oracle.steps(model)
    assert not step.plan.whole
    assert max(first_dimensions(step).values()) <= VOCABULARY + BATCH * WORDS
    if how == "rows":
        # the gradient of the logits' table has its rows where the table has them
        assert max(first_dimensions(step).values()) < VOCABULARY
    parts = variables.sharding_of(model.table).parts
    assert len({part.region for part in parts}) == 4


@pytest.mark.parametrize("name", ["adam", pytest.param("legacy nadam", marks=pytest.mark.slow)])
def test_by_rows_no_device_has_all_rows(name: str) -> None:
    """Slots that are only scattered into have layouts of their own, so they are asked for too."""
    make = classifier(OPTIMIZERS[name])
    rows = {f"*{TABLE}*": cut(4, "rows")[TABLE]}
    model = oracle.check(make, (IDS, Y), 4, batch=BATCH, constraints=rows)
    (step,) = oracle.steps(model)
    assert max(first_dimensions(step).values()) == -(-VOCABULARY // 4)


@pytest.mark.parametrize(
    "name", ["adagrad", pytest.param("legacy momentum", marks=pytest.mark.slow)]
)
def test_by_columns_all_rows_are_in_shards_only(name: str) -> None:
    """No gradient of the whole table is made where the optimizer asks for none."""
    make = classifier(OPTIMIZERS[name])
    model = oracle.check(make, (IDS, Y), 4, batch=BATCH, constraints=cut(4, "columns"))
    (step,) = oracle.steps(model)
    of_all_rows = {op for _, op, shape in made(step) if shape.rank and shape[0] == VOCABULARY}
    assert of_all_rows <= {"ReadVariableOp"}


def test_a_large_vocabulary_is_looked_up_where_it_lies() -> None:
    def make() -> keras.Model:
        model = keras.Sequential(
            [
                L.Input((WORDS,), dtype="int64"),
                L.Embedding(20_000, 24, name="table"),
                L.GlobalAveragePooling1D(),
                L.Dense(CLASSES),
            ]
        )
        model.compile(O.Adam(0.01), "mse")
        return model

    model = oracle.check(make, (IDS * 19, Y), 4, batch=BATCH)
    (step,) = oracle.steps(model)
    (table,) = (v for v in step.captured.graph.variables.values() if v.name == TABLE)
    assert not step.plan.layouts[table.ref].replicated
    assert step.plan.predicted_bytes < table.spec.nbytes / 50


def masked() -> keras.Model:
    """Words of id 0 do not count."""
    model = keras.Sequential(
        [
            L.Input((WORDS,), dtype="int64"),
            L.Embedding(VOCABULARY, WIDTH, mask_zero=True, name="table"),
            L.LSTM(12, unroll=True),
            L.Dense(CLASSES),
        ]
    )
    model.compile(O.Adam(0.01), "mse")
    return model


def summed() -> keras.Model:
    model = keras.Sequential(
        [
            L.Input((WORDS,), dtype="int64"),
            L.Embedding(VOCABULARY, WIDTH, mask_zero=True, name="table"),
            L.Lambda(lambda x: tf.reduce_sum(x, 1)),
            L.Dense(CLASSES),
        ]
    )
    model.compile(O.Adagrad(0.1), "mse")
    return model


def shared() -> keras.Model:
    """One table looked up twice: its gradient is of both lookups' ids."""
    words = L.Input((WORDS,), dtype="int64")
    table = L.Embedding(VOCABULARY, WIDTH, name="table")
    left = L.GlobalAveragePooling1D()(table(words))
    right = L.GlobalMaxPooling1D()(table(L.Lambda(lambda i: i[:, ::2])(words)))
    model = keras.Model(words, L.Dense(CLASSES)(L.Concatenate()([left, right])))
    model.compile(O.Adam(0.01), "mse")
    return model


def towers() -> keras.Model:
    """Users and items, nearly all of it in two tables."""
    words = L.Input((WORDS,), dtype="int64")
    user = L.Lambda(lambda i: i[:, :2])(words)
    item = L.Lambda(lambda i: tf.minimum(i[:, 2:], 600))(words)
    sides = []
    for name, ids, size in (("table", user, VOCABULARY), ("items", item, 601)):
        h = L.Flatten()(L.Embedding(size, WIDTH, name=name)(ids))
        sides.append(L.Dense(14, name=f"{name}_tower")(h))
    model = keras.Model(words, L.Dense(CLASSES)(L.Multiply()(sides)))
    model.compile(O.legacy.Adam(0.01), "mse")
    return model


@pytest.mark.parametrize("make, k, how", [
    (summed, 3, "rows"), (shared, 3, "columns"), (towers, 4, "rows"),
    pytest.param(towers, 2, "free", marks=pytest.mark.slow),
    pytest.param(masked, 2, "rows", marks=pytest.mark.slow),
])  # fmt: skip
def test_models(make: oracle.Make, k: int, how: str) -> None:
    assert_sparse(oracle.check(make, (IDS, Y), k, batch=BATCH, constraints=cut(k, how)))


def test_with_collectives() -> None:
    make = classifier(OPTIMIZERS["adam"])
    oracle.check(make, (IDS, Y), 2, batch=BATCH, constraints=cut(2, "rows"), lowering="collective")


def by_slices(table: tf.Variable, gradient: tf.IndexedSlices) -> None:
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))


def by_places(table: tf.Variable, gradient: tf.IndexedSlices) -> None:
    table.scatter_nd_sub(gradient.indices[:, tf.newaxis], 0.1 * gradient.values)


def by_distinct_ids(table: tf.Variable, gradient: tf.IndexedSlices) -> None:
    """As an optimizer that clips the rows of distinct ids by their norm."""
    ids, places = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(ids))
    rows = tf.clip_by_norm(rows, 0.3)
    table.scatter_nd_update(ids[:, tf.newaxis], tf.gather(table, ids) - rows)


@pytest.mark.parametrize("apply", [by_slices, by_places, by_distinct_ids])
@pytest.mark.parametrize("layout", [("d0", None), (None, "d0")], ids=["rows", "columns"])
def test_a_function(apply: Callable[..., None], layout: tuple[str | None, ...]) -> None:
    def step_of() -> tuple[Callable[..., tf.Tensor], list[tf.Variable]]:
        random = np.random.RandomState(2)
        table = tf.Variable(random.rand(VOCABULARY, WIDTH), name=TABLE)
        kernel = tf.Variable(random.rand(WIDTH, CLASSES))

        def step(ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                found = tf.nn.embedding_lookup(table, ids)
                loss = tf.reduce_mean((tf.matmul(tf.reduce_mean(found, 1), kernel) - y) ** 2)
            gradient, dense = tape.gradient(loss, [table, kernel])
            apply(table, gradient)
            kernel.assign_sub(0.1 * dense)
            return loss

        return step, [table, kernel]

    step, expected = step_of()
    one = tf.function(step)
    step, found = step_of()
    many = tofu_tf.function(
        step, devices=2, device_type="CPU", constraints={TABLE: layout}, undescribed="refuse"
    )
    for n in range(3):
        batch = IDS[n * BATCH : (n + 1) * BATCH], Y[n * BATCH : (n + 1) * BATCH].astype("float64")
        np.testing.assert_allclose(
            many(*map(tf.constant, batch)), one(*map(tf.constant, batch)), 1e-10
        )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-10)
    assert len(variables.sharding_of(found[0]).parts) == 2
