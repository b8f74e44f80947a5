"""A variable in parts shows whole current values, however it is read and written."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tofu_tf import errors
from tofu_tf.runtime import devices, shown, variables
from tofu_tf.tdl.regions import Region

SHAPE = (5, 3)
VALUE = np.arange(15, dtype=np.float32).reshape(SHAPE)


def parts(*bounds):
    cpus = devices.find_devices(device_type="CPU")
    return [
        variables.Part(cpus[i], Region(tuple((lo, hi) for lo, hi in b)))
        for i, b in enumerate(bounds)
    ]


PARTS = {
    "rows": parts([(0, 2), (0, 3)], [(2, 5), (0, 3)]),
    "columns": parts([(0, 5), (0, 1)], [(0, 5), (1, 2)], [(0, 5), (2, 3)]),
    "blocks": parts([(0, 2), (0, 1)], [(0, 2), (1, 3)], [(2, 5), (0, 1)], [(2, 5), (1, 3)]),
    "ragged": parts([(0, 2), (0, 3)], [(2, 5), (0, 2)], [(2, 5), (2, 3)]),
    "copies": parts([(0, 5), (0, 3)], [(0, 5), (0, 3)]),
    "home": parts([(0, 5), (0, 3)]),
    "copied rows": parts([(0, 2), (0, 3)], [(2, 5), (0, 3)], [(0, 2), (0, 3)], [(2, 5), (0, 3)]),
}


@pytest.fixture(params=list(PARTS))
def sharded(request):
    variable = tf.Variable(VALUE, name="layer/kernel")
    variables.shard_variable(variable, PARTS[request.param])
    return variable


INDICES, ROWS = tf.constant([3, 0]), tf.constant([[1.0, 2, 3], [4, 5, 6]])
READS = {
    "numpy": lambda v: v.numpy(),
    "read_value": lambda v: v.read_value(),
    "value": lambda v: v.value(),
    "array": np.asarray,
    "convert": tf.convert_to_tensor,
    "operator": lambda v: v + 1 - 1,
    "C++ operator": lambda v: tf.matmul(v, tf.eye(3)),
    "sparse_read": lambda v: v.sparse_read(tf.range(5)),
    "gather": lambda v: tf.gather(v, tf.range(5)),
    "gather_nd": lambda v: v.gather_nd([[0], [1], [2], [3], [4]]),
    "slice": lambda v: v[:],
    "deepcopy": lambda v: copy.deepcopy(v).numpy(),
    "function": lambda v: tf.function(lambda: v.read_value())(),
    "function operator": lambda v: tf.function(lambda: v * 1)(),
}


@pytest.mark.parametrize("read", READS)
def test_reads(sharded, read):
    np.testing.assert_array_equal(READS[read](sharded), VALUE)


WRITES = {
    "assign": lambda v: v.assign(VALUE * 2),
    "assign_add": lambda v: v.assign_add(VALUE),
    "assign_sub": lambda v: v.assign_sub(VALUE * 0.5),
    "assign nothing back": lambda v: v.assign(VALUE * 3, read_value=False),
    "slice": lambda v: v[1:4, 2].assign([7.0, 8, 9]),
    "scatter_update": lambda v: v.scatter_update(tf.IndexedSlices(ROWS, INDICES)),
    "scatter_add": lambda v: v.scatter_add(tf.IndexedSlices(ROWS, INDICES)),
    "scatter_nd_sub": lambda v: v.scatter_nd_sub([[0, 1], [4, 2]], [5.0, 6.0]),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_writes(sharded, write, traced):
    plain = tf.Variable(VALUE)
    WRITES[write](plain)
    if traced:

        @tf.function
        def step():
            WRITES[write](sharded)

        step()
    else:
        WRITES[write](sharded)
    state = variables.sharding_of(sharded)
    np.testing.assert_array_equal(sharded.numpy(), plain.numpy())
    for part, resource in zip(state.parts, state.resources, strict=True):
        (lo, hi), (left, right) = part.region.bounds
        np.testing.assert_array_equal(resource.numpy(), plain.numpy()[lo:hi, left:right])
        assert resource.handle.device == part.device


def test_reads_in_a_function_follow_its_writes(sharded):
    @tf.function
    def step():
        before = tf.reduce_sum(sharded)
        after = tf.reduce_sum(sharded.assign_add(tf.ones(SHAPE)))
        return before, after, tf.reduce_sum(sharded)

    assert [x.numpy() for x in step()] == [105, 120, 120]
    assert [x.numpy() for x in step()] == [120, 135, 135]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
@pytest.mark.parametrize(
    "loss",
    [lambda v: tf.reduce_sum(v * v), lambda v: tf.reduce_sum(tf.matmul(v, tf.transpose(v)))],
)
def test_gradients_reach_it(sharded, loss, wrap):
    def gradient(variable):
        def compute():
            with tf.GradientTape() as tape:
                value = loss(variable)
            return tape.gradient(value, variable)

        return wrap(compute)()

    np.testing.assert_array_equal(gradient(sharded), gradient(tf.Variable(VALUE)))


def test_the_original_resource_is_empty(sharded):
    state = variables.sharding_of(sharded)
    held = tf.raw_ops.ReadVariableOp(resource=state.handle, dtype=tf.float32)
    assert held.shape == (0,)
    held_in_parts = sum(r.numpy().size for r in state.resources)
    assert held_in_parts == sum(p.region.size for p in state.parts)


def test_functions_traced_before_fail():
    variable = tf.Variable(VALUE)
    total = tf.function(lambda: tf.reduce_sum(variable * 2))
    assert total().numpy() == 210
    variables.shard_variable(variable, PARTS["rows"])
    with pytest.raises(tf.errors.InvalidArgumentError):
        total()


@pytest.mark.parametrize("target", PARTS)
def test_reshard(sharded, target):
    sharded.assign(VALUE + 1)
    state = variables.shard_variable(sharded, PARTS[target])
    assert list(state.parts) == PARTS[target]
    np.testing.assert_array_equal(sharded.numpy(), VALUE + 1)


def test_parts_that_stay_keep_their_resources():
    variable = tf.Variable(VALUE)
    state = variables.shard_variable(variable, PARTS["rows"])
    kept = state.resources[0]
    state.reshard(PARTS["ragged"])
    assert state.resources[0] is kept


def test_restore(sharded):
    ordinary = type(tf.Variable(0.0))
    sharded.assign(VALUE - 1)
    variables.restore_variable(sharded)
    assert type(sharded) is ordinary
    assert variables.sharding_of(sharded) is None
    np.testing.assert_array_equal(tf.matmul(sharded, tf.eye(3)), VALUE - 1)


def test_checkpoints_hold_the_whole_value(sharded, tmp_path):
    path = tf.train.Checkpoint(v=sharded).write(str(tmp_path / "ckpt"))
    plain = tf.Variable(tf.zeros(SHAPE))
    tf.train.Checkpoint(v=plain).read(path).assert_consumed()
    np.testing.assert_array_equal(plain.numpy(), VALUE)
    sharded.assign(tf.zeros(SHAPE))
    tf.train.Checkpoint(v=sharded).read(path).assert_consumed()
    np.testing.assert_array_equal(sharded.numpy(), VALUE)


def test_a_traced_step_sees_an_ordinary_variable(sharded):
    state = variables.sharding_of(sharded)
    with shown.whole_variables_traced():
        graph = tf.function(lambda: sharded.assign_add(sharded * 2)).get_concrete_function().graph
        np.testing.assert_array_equal(sharded.numpy(), VALUE)
    assert [op.type for op in graph.get_operations() if "Variable" in op.type] == [
        "ReadVariableOp",
        "AssignAddVariableOp",
        "ReadVariableOp",
    ]
    assert [x is state.handle for x in graph.external_captures] == [True]


@pytest.mark.parametrize("dtype", ["int64", "float16", "bool", "bfloat16"])
def test_scalars_and_types(dtype):
    variable = tf.Variable(tf.cast(1, dtype))
    variables.shard_variable(variable, parts([], []))
    assert variable.numpy() == 1
    assert variable.dtype.name == dtype
    variable.assign(tf.cast(0, dtype))
    assert [bool(r.numpy()) for r in variables.sharding_of(variable).resources] == [False] * 2


@pytest.mark.parametrize(
    "wrong, said",
    [
        (parts([(0, 2), (0, 3)]), "cover"),
        (parts([(0, 9), (0, 3)]), "cover"),
        ([*PARTS["home"], *PARTS["home"]], "two equal parts"),
    ],
)
def test_wrong_parts_are_refused_and_change_nothing(wrong, said):
    variable = tf.Variable(VALUE, name="layer/kernel")
    with pytest.raises(errors.PlanError, match=said) as refused:
        variables.shard_variable(variable, wrong)
    assert "layer/kernel" in str(refused.value)
    np.testing.assert_array_equal(variable.numpy(), VALUE)


def test_wrong_values_are_refused(sharded):
    for write in (sharded.assign, tf.function(sharded.assign)):
        with pytest.raises(ValueError, match=r"Shape mismatch"):
            write(tf.zeros([5, 4]))
    with pytest.raises(errors.ModelError, match="count_up_to"):
        sharded.count_up_to(3)
    with pytest.raises(errors.ModelError, match=r"argument of a tf\.function"):
        tf.function(lambda v: v + 1)(sharded)


def test_mixed_precision_wrappers():
    layer = tf_keras.layers.Dense(3, dtype="mixed_float16")
    layer.build((None, 5))
    before = layer.kernel.numpy()
    variables.shard_variable(layer.kernel, PARTS["rows"])
    np.testing.assert_array_equal(layer.kernel.numpy(), before)
    assert layer(tf.ones([1, 5])).dtype == tf.float16
    # float16 has 11 bits; sums of five that nearly cancel lose a few of them
    np.testing.assert_allclose(
        layer(tf.ones([1, 5])), before.astype("float16").sum(0, keepdims=True), rtol=1e-2
    )


def everything(model):
    optimizer = model.optimizer
    held = [*model.weights, *optimizer.variables]
    return held + [v for metric in model.metrics for v in metric.variables]


def small_model():
    tf_keras.utils.set_random_seed(3)
    model = tf_keras.Sequential(
        [tf_keras.layers.Dense(4, input_shape=(3,)), tf_keras.layers.BatchNormalization()]
    )
    model.compile("adam", "mse", metrics=["mae"])
    model.train_on_batch(np.ones([2, 3]), np.ones([2, 4]))
    return model


@pytest.mark.parametrize("ending", [".weights.h5", ".h5", ".keras", ""])
def test_keras_saves_and_loads_whole_weights(tmp_path, ending):
    model, plain = small_model(), small_model()
    cpus = devices.find_devices(device_type="CPU")
    for variable in everything(model):
        shape = tuple(variable.shape)
        halves = [Region(tuple((0, n) for n in shape))] * 2
        if shape and shape[0] > 1:
            rest, cut = halves[0].bounds[1:], shape[0] // 2
            halves = [Region(((0, cut), *rest)), Region(((cut, shape[0]), *rest))]
        variables.shard_variable(
            variable, [variables.Part(d, r) for d, r in zip(cpus, halves, strict=False)]
        )
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    path = str(tmp_path / f"saved{ending}")
    if ending == ".keras":
        model.save(path)
        other = tf_keras.models.load_model(path)
        for a, b in zip(everything(model), everything(other), strict=False):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        return
    model.save_weights(path)
    weights = plain.get_weights()
    plain.set_weights([w * 0 for w in weights])
    model.set_weights([w * 0 for w in weights])
    plain.load_weights(path)
    model.load_weights(path)
    for a, b, w in zip(model.get_weights(), plain.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, w)
        np.testing.assert_array_equal(b, w)
    model.reset_metrics()
    assert all(not v.numpy().any() for metric in model.metrics for v in metric.variables)
