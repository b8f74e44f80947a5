"""Nets with a training step of their own, of several inputs, of several optimizers; MLPs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.zoo.step import Training

L = keras.layers
ROWS, FEATURES, LATENT = 5, 9, 3


def vectors(r: np.random.RandomState) -> tuple[Any, ...]:
    return r.normal(size=(ROWS, FEATURES)), r.normal(size=(ROWS, LATENT))


def alone(r: np.random.RandomState) -> tuple[Any, ...]:
    return (r.uniform(0, 1, size=(ROWS, FEATURES)),)


def noisy(r: np.random.RandomState) -> tuple[Any, ...]:
    """Vectors and the noise that they are drawn with."""
    return ((r.uniform(0, 1, size=(ROWS, FEATURES)), r.normal(size=(ROWS, LATENT))),)


class VAE(keras.Model):
    """Reconstruction and divergence, by a tape of its own, with metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [L.Input((FEATURES,)), L.Dense(7, "relu"), L.Dense(2 * LATENT)]
        )
        self.decoder = keras.Sequential([L.Input((LATENT,)), L.Dense(7, "relu"), L.Dense(FEATURES)])
        self.total = keras.metrics.Mean(name="total")

    @property
    def metrics(self) -> list[Any]:
        return [self.total]

    def call(self, data: Any) -> Any:
        x, noise = data
        mean, scale = tf.split(self.encoder(x), 2, axis=1)
        return self.decoder(mean + tf.exp(scale / 2) * noise), mean, scale

    def train_step(self, data: Any) -> Any:
        (data,) = data if len(data) == 1 else (data,)
        with tf.GradientTape() as tape:
            logits, mean, scale = self(data)
            each = tf.nn.sigmoid_cross_entropy_with_logits(data[0], logits)
            apart = 1 + scale - tf.square(mean) - tf.exp(scale)
            loss = tf.reduce_mean(tf.reduce_sum(each, 1) - tf.reduce_sum(apart, 1) / 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}


def vae() -> keras.Model:
    model = VAE()
    model.compile(keras.optimizers.Adam(0.01))
    return model


def siamese() -> keras.Model:
    """One trunk for two inputs; how far apart their images are."""
    trunk = keras.Sequential([L.Input((FEATURES,)), L.Dense(8, "relu"), L.Dense(5, "tanh")])
    left, right = L.Input((FEATURES,)), L.Input((FEATURES,))
    apart = tf.norm(trunk(left) - trunk(right) + 1e-3, axis=1, keepdims=True)
    model = keras.Model([left, right], L.Dense(1, "sigmoid")(apart))
    model.compile(keras.optimizers.Nadam(0.01), "binary_crossentropy")
    return model


def pairs(r: np.random.RandomState) -> tuple[Any, ...]:
    x = r.normal(size=(ROWS, FEATURES)), r.normal(size=(ROWS, FEATURES))
    return x, r.randint(0, 2, (ROWS, 1)).astype(np.float64)


class DCGAN(keras.Model):
    """Two nets against each other, an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [
                L.Input((LATENT,)),
                L.Dense(2 * 2 * 5, use_bias=False),
                L.BatchNormalization(momentum=0.8),
                L.LeakyReLU(),
                L.Reshape((2, 2, 5)),
                L.Conv2DTranspose(3, 4, strides=2, padding="same", activation="relu"),
                L.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
            ]
        )
        self.critic = keras.Sequential(
            [
                L.Input((8, 8, 1)),
                L.Conv2D(3, 4, strides=2, padding="same"),
                L.LeakyReLU(),
                L.Conv2D(4, 4, strides=2, padding="same"),
                L.LeakyReLU(),
                L.Flatten(),
                L.Dense(1),
            ]
        )
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, critic: Any, generator: Any) -> None:
        super().compile()
        self.critic_optimizer, self.generator_optimizer = critic, generator

    def call(self, data: Any) -> Any:
        return self.critic(self.generator(data[1]))

    def train_step(self, data: Any) -> Any:
        ((real, noise),) = data if len(data) == 1 else (data,)
        with tf.GradientTape(persistent=True) as tape:
            fake = self.generator(noise, training=True)
            on_real, on_fake = self.critic(real), self.critic(fake)
            yes, no = tf.ones_like(on_real), tf.zeros_like(on_fake)
            fooled = self.loss_of(yes, on_fake)
            caught = self.loss_of(yes, on_real) + self.loss_of(no, on_fake)
        for loss, net, optimizer in (
            (caught, self.critic, self.critic_optimizer),
            (fooled, self.generator, self.generator_optimizer),
        ):
            weights = net.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": caught, "fooled": fooled}


def dcgan() -> keras.Model:
    model = DCGAN()
    adam = keras.optimizers.Adam
    model.compile(adam(0.01, beta_1=0.5), adam(0.02, beta_1=0.5))
    return model


def images_and_noise(r: np.random.RandomState) -> tuple[Any, ...]:
    return ((r.uniform(-1, 1, (ROWS, 8, 8, 1)), r.normal(size=(ROWS, LATENT))),)


def mlp(optimizer: Any, **options: Any) -> keras.Model:
    model = keras.Sequential([L.Input((FEATURES,)), L.Dense(7, "softsign"), L.Dense(LATENT)])
    model.compile(optimizer, "mse", **options)
    return model


def clipped() -> keras.Model:
    options = {"global_clipnorm": 0.1, "use_ema": True, "weight_decay": 0.01}
    return mlp(keras.optimizers.Adadelta(0.5, **options), metrics=["mae", "cosine_similarity"])


MODELS = {
    "vae": Training(vae, noisy),
    "siamese": Training(siamese, pairs),
    "dcgan": Training(dcgan, images_and_noise),
    "mlp-legacy": Training(lambda: mlp(keras.optimizers.legacy.Adam(0.01)), vectors),
    "mlp-clipped": Training(clipped, vectors),
}
