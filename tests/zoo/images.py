"""Convolutional nets of every kind, on small images of uneven sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.zoo.step import Step, Training

L = keras.layers
raw = tf.raw_ops
ROWS, CLASSES = 5, 3


def labelled(*shape: int) -> Any:
    return lambda r: (r.normal(size=(ROWS, *shape)), r.randint(0, CLASSES, ROWS))


def same_size(*shape: int) -> Any:
    return lambda r: (r.normal(size=(ROWS, *shape)), r.normal(size=(ROWS, *shape)))


def classifier(image: Any, x: Any, optimizer: Any = None) -> keras.Model:
    model = keras.Model(image, L.Dense(CLASSES)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def cnn() -> keras.Model:
    image = L.Input((9, 7, 3))
    x = L.Conv2D(4, 3, padding="same", use_bias=False)(image)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.MaxPool2D(2, padding="same")(x)
    y = L.Conv2D(4, 1, kernel_regularizer=keras.regularizers.L2(1e-3))(x)
    x = L.AveragePooling2D(2)(L.Add()([x, y]))
    return classifier(image, L.GlobalAveragePooling2D()(x), keras.optimizers.Adam(0.01))


def unet(optimizer: Any = "sgd") -> keras.Model:
    """Down twice, up twice, each stage joined with its like."""
    image = L.Input((8, 12, 2))

    def block(x: Any, filters: int) -> Any:
        return L.Conv2D(filters, 3, padding="same", activation="relu")(x)

    first = block(image, 3)
    second = block(L.MaxPool2D()(first), 5)
    x = block(L.MaxPool2D()(second), 7)
    x = block(L.Concatenate()([L.UpSampling2D()(x), second]), 5)
    up = L.Conv2DTranspose(3, 2, strides=2)(x)
    x = block(L.Concatenate()([up, first]), 3)
    model = keras.Model(image, L.Conv2D(2, 1)(x))
    model.compile(optimizer, "mse")
    return model


def separable() -> keras.Model:
    """Depthwise, separable and dilated convolutions; a strip of padding and cropping."""
    image = L.Input((9, 11, 3))
    x = L.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="relu6")(image)
    x = L.SeparableConv2D(5, 3, strides=2, padding="same", activation="elu")(x)
    x = L.ZeroPadding2D(((1, 2), (0, 1)))(x)
    x = L.Conv2D(4, 3, dilation_rate=2, activation="selu", padding="same")(x)
    x = L.Cropping2D(1)(x)
    x = L.LeakyReLU()(L.Conv2D(3, 2, strides=(2, 1))(x))
    return classifier(image, L.GlobalMaxPooling2D()(x))


def grouped() -> keras.Model:
    image = L.Input((5, 6, 6))
    x = L.Conv2D(8, 3, groups=2, padding="same", activation="relu")(image)
    x = L.GroupNormalization(4)(x)
    x = L.Conv2D(6, 3, groups=2, strides=2)(x)
    return classifier(image, L.Flatten()(x))


def fused() -> keras.Model:
    """What batch normalisation becomes in 32 bits."""
    image = L.Input((5, 7, 3))
    x = L.Conv2D(4, 3, padding="same", use_bias=False)(image)
    x = L.BatchNormalization(momentum=0.9)(x)
    frozen = L.BatchNormalization(trainable=False)
    x = frozen(L.Conv2D(5, 3, activation="softplus")(x))
    return classifier(image, L.GlobalAveragePooling2D()(x))


def conv1d() -> keras.Model:
    series = L.Input((13, 3))
    x = L.Conv1D(4, 5, padding="causal", activation="relu")(series)
    x = L.MaxPool1D(2)(x)
    x = L.SeparableConv1D(5, 3, padding="same", activation="tanh")(x)
    x = L.AveragePooling1D(2)(L.LayerNormalization()(x))
    return classifier(series, L.Flatten()(x), keras.optimizers.RMSprop(0.01))


def conv3d() -> keras.Model:
    volume = L.Input((5, 6, 7, 2))
    x = L.Conv3D(3, 3, padding="same", activation="relu")(volume)
    x = L.Conv3D(3, 2, strides=2, padding="same", activation="tanh")(x)
    x = L.Conv3DTranspose(3, 2, strides=2)(x)
    return classifier(volume, L.GlobalAveragePooling3D()(x))


def autoencoder() -> keras.Model:
    image = L.Input((9, 7, 2))
    x = L.Conv2D(4, 3, strides=2, padding="same", activation="relu")(image)
    x = L.Conv2D(5, 3, strides=2, padding="same", activation="relu")(x)
    x = L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu")(x)
    x = L.Conv2DTranspose(2, 3, strides=2, padding="same")(x)
    x = L.Cropping2D(((0, 3), (0, 1)))(x)
    model = keras.Model(image, x)
    model.compile(keras.optimizers.Adam(0.01), "mae")
    return model


def convnext() -> keras.Model:
    """Blocks of a wide depthwise convolution, a norm, two projections, a scale of each layer."""

    class Scale(L.Layer):
        def build(self, shape: Any) -> None:
            self.gamma = self.add_weight(name="gamma", shape=(shape[-1],), initializer="ones")

        def call(self, x: Any) -> Any:
            return x * self.gamma

    image = L.Input((12, 8, 3))
    x = L.LayerNormalization(epsilon=1e-6)(L.Conv2D(6, 4, strides=4)(image))
    for _ in range(2):
        y = L.DepthwiseConv2D(7, padding="same")(x)
        y = L.LayerNormalization(epsilon=1e-6)(y)
        y = L.Dense(6, activation="gelu")(L.Dense(15)(y))
        x = x + Scale()(y)
    x = L.LayerNormalization()(L.GlobalAveragePooling2D()(x))
    return classifier(image, x)


def vit() -> keras.Model:
    """Patches, a token of the class, positions, blocks of attention."""

    class Tokens(L.Layer):
        def build(self, shape: Any) -> None:
            self.token = self.add_weight(name="token", shape=(1, 1, shape[-1]))
            self.place = self.add_weight(name="place", shape=(1, shape[1] + 1, shape[-1]))

        def call(self, x: Any) -> Any:
            token = tf.repeat(self.token, tf.shape(x)[0], axis=0)
            return tf.concat([token, x], 1) + self.place

    image = L.Input((9, 6, 3))
    x = Tokens()(L.Reshape((6, 10))(L.Conv2D(10, 3, strides=3)(image)))
    y = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(3, 7)(y, y)
    y = L.LayerNormalization()(x)
    x = x + L.Dense(10)(L.Dense(17, activation="gelu")(y))
    return classifier(image, L.LayerNormalization()(x[:, 0]))


def resized() -> Step:
    """Images resized, cropped, turned: kernels that yield 32 bits."""

    def step(x: Any, boxes: Any, which: Any, turns: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = [
                raw.ResizeBilinear(images=x, size=[9, 8], half_pixel_centers=True),
                raw.ResizeBicubic(images=x, size=[4, 9], half_pixel_centers=True),
                raw.ResizeNearestNeighbor(images=x, size=[3, 10]),
            ]
            total = tf.add_n([tf.reduce_sum(tf.square(f)) for f in found])
        found.append(tape.gradient(total, x))
        found.append(raw.ResizeArea(images=x, size=[3, 4]))
        found.append(raw.CropAndResize(image=x, boxes=boxes, box_ind=which, crop_size=[4, 3]))
        found.append(raw.AdjustContrastv2(images=x, contrast_factor=1.7))
        projected = raw.ImageProjectiveTransformV3(
            images=x,
            transforms=turns,
            output_shape=[5, 6],
            fill_value=0.5,
            interpolation="BILINEAR",
            fill_mode="REFLECT",
        )
        return [*found, projected]

    r = np.random.RandomState(3)
    corners = r.rand(4, 4)
    boxes = np.concatenate([corners[:, :2] * 0.4, 0.5 + corners[:, 2:] * 0.4], 1)
    turns = np.tile([[0.9, 0.1, 0.3, -0.1, 1.1, 0.2, 0.0, 0.0]], (3, 1))
    feeds = (r.normal(size=(3, 6, 5, 2)), boxes, np.array([0, 2, 1, 1]), turns)
    narrow = tuple(f.astype("float32" if f.dtype == np.float64 else "int32") for f in feeds)
    return Step(step, narrow, 1e-4)


def pools() -> Step:
    """Pooling and its gradients with windows that overlap and stick out."""

    def step(x: Any, volume: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, volume])
            found = [
                tf.nn.max_pool2d(x, 3, 2, "SAME"),
                tf.nn.avg_pool2d(x, 3, 2, "SAME"),
                tf.nn.max_pool2d(x, (2, 3), 1, "VALID"),
                tf.nn.max_pool_with_argmax(x, 3, 2, "SAME", include_batch_in_index=False)[0],
                tf.nn.max_pool3d(volume, 2, 2, "SAME"),
                tf.nn.avg_pool3d(volume, 3, 1, "VALID"),
            ]
            squares = [tf.reduce_sum(tf.square(f)) for f in found]
            total = tf.add_n([tf.cast(s, tf.float64) for s in squares])
        return [*found, *tape.gradient(total, [x, volume])]

    r = np.random.RandomState(4)
    volume = r.normal(size=(2, 5, 4, 3, 2)).astype("float32")  # no kernel of 64 bits
    return Step(step, (r.normal(size=(2, 7, 5, 3)), volume), 1e-5)


MODELS = {
    "cnn": Training(cnn, labelled(9, 7, 3)),
    "unet": Training(
        unet, lambda r: (r.normal(size=(ROWS, 8, 12, 2)), r.normal(size=(ROWS, 8, 12, 2)))
    ),
    "separable": Training(separable, labelled(9, 11, 3)),
    "grouped": Training(grouped, labelled(5, 6, 6), compiled=True),
    "fused": Training(fused, labelled(5, 7, 3), "float32", 1e-4),
    "conv1d": Training(conv1d, labelled(13, 3)),
    "conv3d": Training(conv3d, labelled(5, 6, 7, 2)),
    "autoencoder": Training(autoencoder, same_size(9, 7, 2)),
    "convnext": Training(convnext, labelled(12, 8, 3)),
    "vit": Training(vit, labelled(9, 6, 3)),
}
FUNCTIONS = {"resized": resized, "pools": pools}
