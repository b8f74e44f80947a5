"""Nets of the sizes that people train, made abstractly: no weight has a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

L = keras.layers
A = keras.applications
BATCH = 8

# A compiled model and the specs of its step's data.
Made = tuple[keras.Model, tuple[Any, ...]]


def ids(*shape: int) -> tf.TensorSpec:
    return tf.TensorSpec((BATCH, *shape), tf.int32)


def values(*shape: int) -> tf.TensorSpec:
    return tf.TensorSpec((BATCH, *shape), tf.float32)


def compiled(
    inputs: Any, x: Any, classes: int, shape: tuple[int, ...], dtype: str = "float32"
) -> Made:
    """A classifier of whatever `x` has one row for, trained with Adam."""
    model = keras.Model(inputs, L.Dense(classes)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model, (tf.TensorSpec((BATCH, *inputs.shape[1:]), dtype), ids(*shape))


def application(name: str) -> Made:
    """One of tf_keras.applications at its own size of image."""
    model = getattr(A, name)(weights=None, input_shape=(224, 224, 3), classes=1000)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (values(224, 224, 3), ids())


def unet(size: int = 128, filters: int = 32) -> Made:
    image = L.Input((size, size, 3))

    def block(x: Any, n: int) -> Any:
        for _ in range(2):
            x = L.Conv2D(n, 3, padding="same", use_bias=False)(x)
            x = L.ReLU()(L.BatchNormalization()(x))
        return x

    x, kept = image, []
    for n in (1, 2, 4):
        kept.append(block(x, n * filters))
        x = L.MaxPool2D()(kept[-1])
    x = L.Dropout(0.3)(block(x, 8 * filters))
    for n in (4, 2, 1):
        up = L.Conv2DTranspose(n * filters, 2, strides=2)(x)
        x = block(L.Concatenate()([up, kept.pop()]), n * filters)
    return compiled(image, x, 5, (size, size))


class Places(L.Layer):
    """A learnt vector for every place."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(name="table", shape=shape[1:])

    def call(self, x: Any) -> Any:
        return x + self.table


def blocks(x: Any, layers: int, heads: int, causal: bool) -> Any:
    """Blocks of attention and two dense layers, norm first, with dropout."""
    width = x.shape[-1]
    for _ in range(layers):
        y = L.LayerNormalization(epsilon=1e-6)(x)
        y = L.MultiHeadAttention(heads, width // heads, dropout=0.1)(y, y, use_causal_mask=causal)
        x = x + L.Dropout(0.1)(y)
        y = L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x))
        x = x + L.Dropout(0.1)(L.Dense(width)(y))
    return L.LayerNormalization()(x)


def gpt(words: int = 8000, steps: int = 128, width: int = 192, layers: int = 2) -> Made:
    text = L.Input((steps,), dtype="int32")
    x = blocks(Places()(L.Embedding(words, width)(text)), layers, 6, True)
    return compiled(text, x, words, (steps,), "int32")


def bert(words: int = 8000, steps: int = 128, width: int = 192, layers: int = 2) -> Made:
    """Two kinds of ids, a mask of padding; every word is guessed."""
    text = L.Input((steps,), dtype="int32")
    x = Places()(L.Embedding(words, width, mask_zero=True)(text))
    x = L.LayerNormalization()(x)
    for _ in range(layers):
        y = L.MultiHeadAttention(6, width // 6)(x, x)
        x = L.LayerNormalization()(x + L.Dropout(0.1)(y))
        y = L.Dense(width)(L.Dense(4 * width, activation="gelu")(x))
        x = L.LayerNormalization()(x + y)
    return compiled(text, x, words, (steps,), "int32")


def vit(size: int = 224, patch: int = 16, width: int = 192, layers: int = 2) -> Made:
    image = L.Input((size, size, 3))
    x = L.Conv2D(width, patch, strides=patch)(image)
    x = Places()(L.Reshape((-1, width))(x))
    x = blocks(x, layers, 3, False)
    return compiled(image, L.GlobalAveragePooling1D()(x), 1000, ())


def lstm(layers: int = 3, steps: int = 10, width: int = 256) -> Made:
    inputs = L.Input((steps, width), BATCH)
    x = inputs
    for i in range(layers):
        x = L.LSTM(width, return_sequences=i < layers - 1, unroll=True)(x)
    return compiled(inputs, x, 1000, ())


def conv1d(steps: int = 4096) -> Made:
    sound = L.Input((steps, 1))
    x = sound
    for n in (32, 64, 128):
        x = L.MaxPool1D(4)(L.Conv1D(n, 9, padding="same", activation="relu")(x))
    x = L.Conv1D(128, 3, dilation_rate=2, activation="relu")(x)
    return compiled(sound, L.GlobalMaxPooling1D()(x), 35, ())


def conv3d(size: int = 32) -> Made:
    volume = L.Input((size, size, size, 1))
    x = volume
    for n in (16, 32):
        x = L.Conv3D(n, 3, padding="same", activation="relu")(x)
        x = L.MaxPool3D()(L.BatchNormalization()(x))
    return compiled(volume, L.Dense(64, activation="relu")(L.Flatten()(x)), 10, ())


def autoencoder(size: int = 64) -> Made:
    image = L.Input((size, size, 3))
    x = image
    for n in (32, 64):
        x = L.Conv2D(n, 3, strides=2, padding="same", activation="relu")(x)
    shape = x.shape[1:]
    code = L.Dense(128)(L.Flatten()(x))
    x = L.Reshape(shape)(L.Dense(shape[0] * shape[1] * shape[2], activation="relu")(code))
    for n in (64, 32):
        x = L.Conv2DTranspose(n, 3, strides=2, padding="same", activation="relu")(x)
    model = keras.Model(image, L.Conv2D(3, 3, padding="same", activation="sigmoid")(x))
    model.compile("adam", "mse")
    return model, (values(size, size, 3),) * 2


class Adversaries(keras.Model):
    """DCGAN: two nets against each other, an optimizer each."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        up = {"strides": 2, "padding": "same", "use_bias": False}
        self.generator = keras.Sequential([L.Input((latent,))])
        for layer in (
            L.Dense(7 * 7 * 128, use_bias=False),
            *(L.BatchNormalization(), L.LeakyReLU(), L.Reshape((7, 7, 128))),
            *(L.Conv2DTranspose(64, 5, **up), L.BatchNormalization(), L.LeakyReLU()),
            L.Conv2DTranspose(1, 5, activation="tanh", **up),
        ):
            self.generator.add(layer)
        self.critic = keras.Sequential([L.Input((28, 28, 1))])
        for n in (64, 128):
            for layer in (L.Conv2D(n, 5, 2, "same"), L.LeakyReLU(), L.Dropout(0.3)):
                self.critic.add(layer)
        self.critic.add(L.Flatten())
        self.critic.add(L.Dense(1))
        self.latent = latent
        self.of_critic, self.of_generator = (keras.optimizers.Adam(1e-4) for _ in range(2))
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> Any:
        (real,) = data
        noise = tf.random.normal((real.shape[0], self.latent))
        with tf.GradientTape(persistent=True) as tape:
            fake = self.generator(noise, training=True)
            on_real, on_fake = self.critic(real, training=True), self.critic(fake, training=True)
            fooled = self.loss_of(tf.ones_like(on_fake), on_fake)
            caught = self.loss_of(tf.ones_like(on_real), on_real)
            caught += self.loss_of(tf.zeros_like(on_fake), on_fake)
        for loss, net, optimizer in (
            (caught, self.critic, self.of_critic),
            (fooled, self.generator, self.of_generator),
        ):
            weights = net.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"caught": caught, "fooled": fooled}


def dcgan() -> Made:
    model = Adversaries(100)
    model.compile()
    return model, (values(28, 28, 1),)


NETS: dict[str, Callable[[], Made]] = {
    "ResNet50": lambda: application("ResNet50"),
    "MobileNetV2": lambda: application("MobileNetV2"),
    "DenseNet121": lambda: application("DenseNet121"),
    "EfficientNetB0": lambda: application("EfficientNetB0"),
    "ConvNeXtTiny": lambda: application("ConvNeXtTiny"),
    "U-Net": unet,
    "GPT": gpt,
    "BERT": bert,
    "ViT": vit,
    "LSTM": lstm,
    "Conv1D": conv1d,
    "Conv3D": conv3d,
    "autoencoder": autoencoder,
    "DCGAN": dcgan,
}
