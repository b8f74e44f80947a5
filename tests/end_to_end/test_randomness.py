"""cases.md 8: dropout, noise and other random numbers over k devices.

Exact: the numbers of one device, bit for bit. Independent: a stream for each part.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tofu_tf
from tests.end_to_end import oracle
from tofu_tf import errors

L = keras.layers
R = np.random.RandomState(0)
ROWS, BATCH, FEATURES = 33, 16, 50  # two batches of 16 and one of a single row
X = R.rand(ROWS, FEATURES).astype("float32")
SEQUENCES = R.rand(ROWS, 7, 12).astype("float32")
IMAGES = R.rand(ROWS, 9, 8, 4).astype("float32")
Y = R.rand(ROWS, 24).astype("float32")


def net(shape, *layers, optimizer=None):
    def make():
        made = [layer() for layer in layers]
        model = keras.Sequential([L.Input(shape), *made, L.Flatten(), L.Dense(24)])
        model.compile(optimizer() if optimizer else keras.optimizers.SGD(0.1), "mse")
        return model

    return make


class Vae(keras.Model):
    """Draws in a train_step of its own, in every way that TensorFlow has."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = L.Dense(48), L.Dense(24)

    def train_step(self, data):
        x, y = data
        seed = tf.stack([tf.cast(self._train_counter, tf.int32), 7])
        step = tf.random.uniform((tf.shape(x)[0], 1), maxval=10, dtype=tf.int32)
        x += 0.01 * tf.cast(step, x.dtype) + 0.1 * tf.random.truncated_normal(tf.shape(x))
        with tf.GradientTape() as tape:
            mean, deviation = tf.split(self.encode(x), 2, axis=1)
            z = mean + tf.exp(deviation) * tf.random.normal(tf.shape(mean))
            z *= tf.random.stateless_uniform(tf.shape(mean), seed)
            loss = tf.reduce_mean((self.decode(z) - y) ** 2) + tf.reduce_mean(mean**2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def vae():
    model = Vae()
    model.compile(keras.optimizers.Adam(0.01))
    return model


WIDE = lambda: L.Dense(48, "tanh")  # noqa: E731
WINDOW = lambda: L.Conv2D(6, 3, padding="same")  # noqa: E731
# two streams without seeds of their own and one with: Keras makes their seeds in different ways
DROPOUTS = (WIDE, lambda: L.Dropout(0.5), WIDE, lambda: L.Dropout(0.2, seed=5))
NETS = {
    "dropout": (net((FEATURES,), *DROPOUTS, lambda: L.Dropout(0.3)), X),
    "noise": (net((FEATURES,), WIDE, lambda: L.GaussianNoise(0.1)), X),
    "spatial": (net((7, 12), lambda: L.SpatialDropout1D(0.4), lambda: L.Dense(20)), SEQUENCES),
    "of images": (net((9, 8, 4), WINDOW, lambda: L.SpatialDropout2D(0.4)), IMAGES),
    "by a factor": (net((FEATURES,), WIDE, lambda: L.GaussianDropout(0.3)), X),
    "alpha": (net((FEATURES,), WIDE, lambda: L.AlphaDropout(0.3)), X),
    "one mask for all steps": (net((7, 12), lambda: L.Dropout(0.4, (None, 1, 12))), SEQUENCES),
    "vae": (vae, X),
    "flipped": (net((9, 8, 4), lambda: L.RandomFlip(seed=3)), IMAGES),
    "turned": (net((9, 8, 4), lambda: L.RandomRotation(0.2, seed=3)), IMAGES),
    "zoomed": (net((9, 8, 4), lambda: L.RandomZoom(0.2, seed=3)), IMAGES),
    "contrast": (net((9, 8, 4), lambda: L.RandomContrast(0.2, seed=3)), IMAGES),
}
OFTEN = ("dropout", "noise", "spatial", "vae", "flipped")
TRAINED = [
    pytest.param(name, k, marks=() if name in OFTEN else pytest.mark.slow)
    for name, k in zip(NETS, itertools.cycle([2, 3, 4]), strict=False)
] + [pytest.param(name, k, marks=pytest.mark.slow) for name in NETS for k in (2, 3, 4, 5)]


@pytest.mark.parametrize("name, k", TRAINED)
def test_training_is_that_of_one_device(name, k):
    make, x = NETS[name]
    model = oracle.check(make, (x, Y), k, batch=BATCH, epochs=2)
    assert not model.tofu.plan.whole


def test_with_collectives():
    oracle.check(NETS["dropout"][0], (X, Y), 4, batch=BATCH, lowering="collective")


def test_with_generators_in_variables():
    """Keras's other way: a tf.random.Generator for each layer."""
    keras.backend.experimental.enable_tf_random_generator()
    try:
        oracle.check(NETS["dropout"][0], (X, Y), 3, batch=BATCH)
    finally:
        keras.backend.experimental.disable_tf_random_generator()


def lives(model):
    """Fits, evaluates and predicts in turn; is seeded and compiled again on the way."""
    fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    seen = [model.fit(X, Y, **fit).history["loss"]]
    seen.append([model.evaluate(X, Y, batch_size=BATCH, verbose=0)])
    seen.append(model.predict(X[:5], verbose=0))
    seen.append(model.fit(X, Y, **fit).history["loss"])
    tf.random.set_seed(7)  # TensorFlow's kernels start again, with the seeds that they have
    seen.append(model.fit(X, Y, **fit).history["loss"])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    seen.append(model.fit(X, Y, **fit).history["loss"])
    model.make_train_function(force=True)
    seen.append(model.fit(X, Y, **fit).history["loss"])
    return seen


def test_a_life_as_on_one_device():
    make = NETS["dropout"][0]
    for one, several in zip(
        lives(oracle.made(make)), lives(oracle.distributed(make, 2)), strict=True
    ):
        np.testing.assert_allclose(several, one, **oracle.FLOAT32)


# What a mask is seen by: ones that went through a dropout layer, which is 0 or 1 / keep.
RATE, KEEP = 0.25, 0.75
CUTS = [
    (2, ("d0", None)),
    (2, (None, "d0")),
    (3, ("d0", None)),
    (3, (None, "d0")),
    (4, ("d0", "d1")),
    (4, ("d0d1", None)),
    (4, (None, "d0d1")),
]


def masks(k, wish, seed=1, rows=23, columns=50, times=3, **options):
    """A dropout's masks over some steps, cut as `wish` says; on one device where `k` is 0."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    image = L.Input((columns,))
    model = keras.Model(image, L.Dropout(RATE, name="drop")(image, training=True), name="mask")
    if k:
        constraints = {"mask/drop/*RandomUniform": wish} if wish else None
        model = tofu_tf.distribute(
            model, k, device_type="CPU", constraints=constraints, undescribed="refuse", **options
        )
    ones = np.ones((rows, columns), np.float32)
    found = [model.predict(ones, batch_size=rows, verbose=0) for _ in range(times)]
    if k:
        oracle.assert_steps_hold(model)
        (drawn,) = (n for n in model.tofu.plan.strategies if n.endswith("RandomUniform"))
        assert not wish or any(model.tofu.plan.strategies[drawn].axes)
    return np.stack(found) != 0


@pytest.mark.parametrize("k, wish", CUTS)
def test_exact_masks_are_those_of_one_device(k, wish):
    one = masks(0, None)
    assert not np.array_equal(one[0], one[1])
    assert np.array_equal(masks(k, wish), one)


def parts(mask, k, wish):
    """The parts of equal size that k devices draw."""
    across = 0 if wish[0] else 1
    pieces = [mask]
    for dim in (0, 1) if all(wish) else (across,):
        count = math.isqrt(k) if all(wish) else k
        pieces = [part for piece in pieces for part in np.split(piece, count, axis=dim)]
    return pieces


@pytest.mark.parametrize("k, wish", CUTS)
def test_independent_parts(k, wish):
    """Parts differ from each other and from step to step, and keep as many as asked for."""
    found = masks(k, wish, rows=120, columns=144, times=2, random="independent")
    pieces = [part for mask in found for part in parts(mask, k, wish)]
    assert len(pieces) == 2 * k
    for one, other in itertools.combinations(pieces, 2):
        assert not np.array_equal(one, other)
        # Two independent masks agree at a share of elements, with the deviation of a binomial.
        agree = KEEP**2 + RATE**2
        assert abs(np.mean(one == other) - agree) < 5 * math.sqrt(agree * (1 - agree) / one.size)
    for piece in pieces:
        assert abs(np.mean(piece) - KEEP) < 5 * math.sqrt(KEEP * RATE / piece.size)
    assert not np.array_equal(found, masks(0, None, rows=120, columns=144, times=2))


def test_independent_runs_repeat_when_seeded_alike():
    wish = ("d0", None)
    first = masks(3, wish, random="independent")
    assert np.array_equal(masks(3, wish, random="independent"), first)
    assert not np.array_equal(masks(3, wish, seed=2, random="independent"), first)


@pytest.mark.parametrize("random", ["exact", "independent"])
@pytest.mark.parametrize("wish", [("d0", None), (None, "d0")])
def test_the_gradient_has_the_mask_of_the_forward_pass(random, wish):
    @tofu_tf.function(
        devices=3,
        device_type="CPU",
        random=random,
        constraints={"dropout/*RandomUniform": wish},
        undescribed="refuse",
    )
    def step(x, weights):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.dropout(x, RATE)
            loss = tf.reduce_sum(y * weights)
        return y, tape.gradient(loss, x)

    x, weights = (tf.constant(R.rand(19, 40) + 1) for _ in range(2))
    seen = []
    for _ in range(2):
        y, gradient = (t.numpy() for t in step(x, weights))
        kept = y != 0
        assert 0 < np.sum(~kept) < kept.size
        np.testing.assert_array_equal(gradient != 0, kept)
        np.testing.assert_allclose(gradient[kept], weights.numpy()[kept] / KEEP, rtol=1e-12)
        seen.append(kept)
    assert not np.array_equal(*seen)


def drawn(wrap):
    """Two signatures of one function, called in turn, with a new seed in between."""
    tf.random.set_seed(11)

    @wrap
    def step(x):
        noise = tf.random.normal(tf.shape(x), dtype=x.dtype) + tf.random.uniform([])
        return x + tf.cast(noise, x.dtype)

    small, large = tf.zeros((17, 40)), tf.zeros((31, 40))
    seen = [step(t).numpy() for t in (small, large, small, large)]
    tf.random.set_seed(12)
    return [*seen, step(small).numpy()]


def test_a_function_draws_what_a_tf_function_draws():
    ours = drawn(lambda f: tofu_tf.function(f, devices=3, device_type="CPU", undescribed="refuse"))
    plain = drawn(tf.function)
    assert all(np.array_equal(a, b) for a, b in zip(ours, plain, strict=True))
    assert not np.array_equal(plain[0], plain[2])
    assert np.array_equal(plain[0], plain[4])


def test_a_generator_goes_on_outside():
    """Eager code draws on from a tf.random.Generator that a partitioned step has drawn from."""
    found = []
    for wrap in (tf.function, lambda f: tofu_tf.function(f, devices=2, device_type="CPU")):
        generator = tf.random.Generator.from_seed(5)
        step = wrap(lambda g=generator: g.normal((23, 30)))
        found.append([*(step().numpy() for _ in range(2)), generator.uniform((4,)).numpy()])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_an_unknown_mode_is_refused():
    model = oracle.made(NETS["noise"][0])
    with pytest.raises(errors.PlanError, match="one of 'exact', 'independent'"):
        tofu_tf.distribute(model, 2, device_type="CPU", random="exactly")
