"""Tensors moved, gathered, scattered, sorted, summed by segments; linear algebra; transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.zoo.step import Step, variable

raw = tf.raw_ops


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def moves() -> Step:
    """Reshaping, joining, splitting, slicing, padding, turning."""

    def step(x: Any, y: Any) -> Any:
        a, b = tf.split(x, [2, 3], axis=0)
        return [
            raw.Reshape(tensor=x, shape=[7, 5, 3]),
            raw.Transpose(x=x, perm=[2, 0, 1]),
            raw.Concat(concat_dim=1, values=[x, y]),
            raw.ConcatV2(values=[a, b, y], axis=0),
            raw.Pack(values=[x, y], axis=1),
            *raw.Unpack(value=x, num=5, axis=0),
            *raw.Split(axis=2, value=y, num_split=3),
            *raw.SplitV(value=x, size_splits=[3, 4], axis=1, num_split=2),
            raw.Slice(input=x, begin=[1, 2, 0], size=[3, 4, 2]),
            x[1:, ::2, -1],
            x[::-1, 3],
            raw.Pad(input=x, paddings=[[1, 0], [2, 3], [0, 0]]),
            raw.PadV2(input=x, paddings=[[1, 0], [2, 3], [0, 0]], constant_values=1.5),
            raw.MirrorPad(input=x, paddings=[[2, 1], [3, 0], [0, 2]], mode="REFLECT"),
            raw.MirrorPad(input=x, paddings=[[2, 1], [3, 0], [0, 2]], mode="SYMMETRIC"),
            raw.Tile(input=x, multiples=[2, 1, 3]),
            raw.BroadcastTo(input=x[:1], shape=[4, 7, 3]),
            raw.ExpandDims(input=x, axis=1),
            raw.Squeeze(input=x[:, 2:3], axis=[1]),
            raw.ReverseV2(tensor=x, axis=[0, 2]),
            raw.Roll(input=x, shift=[2, 1], axis=[0, 1]),
            raw.Fill(dims=[5, 7, 3], value=x[0, 0, 0]),
            raw.EnsureShape(input=2 * x, shape=[5, 7, 3]),
            raw.Snapshot(input=2 * y),
        ]

    return Step(step, (_normal(0, 5, 7, 3), _normal(1, 5, 7, 3)))


def moved_back() -> Step:
    """Gradients of moves."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            parts = [
                tf.square(x[1:, ::2, -1]),
                tf.square(tf.pad(x, [[1, 2], [0, 1], [2, 0]], "REFLECT")),
                tf.square(tf.tile(x, [1, 2, 1])),
                tf.square(tf.broadcast_to(x[:, :1], [5, 4, 6])),
                tf.square(tf.gather(x, [3, 1, 1, 4], axis=1)),
            ]
            total = tf.add_n([tf.reduce_sum(p) for p in parts])
        return tape.gradient(total, x)

    return Step(step, (_normal(2, 5, 7, 6),))


def blocks() -> Step:
    """Space to depth, to batch, and back."""

    def step(x: Any) -> Any:
        deep = raw.SpaceToDepth(input=x, block_size=2)
        many = raw.SpaceToBatchND(input=x, block_shape=[2, 3], paddings=[[0, 0], [1, 2]])
        back = raw.BatchToSpaceND(input=many, block_shape=[2, 3], crops=[[0, 1], [1, 0]])
        return deep, raw.DepthToSpace(input=2 * deep, block_size=2), many, back

    return Step(step, (_normal(3, 2, 6, 6, 4),))


def gathers() -> Step:
    def step(x: Any, ids: Any, pairs: Any, table_ids: Any) -> Any:
        return [
            raw.Gather(params=x, indices=ids),
            raw.GatherV2(params=x, indices=ids, axis=0),
            raw.GatherV2(params=x, indices=table_ids, axis=1),
            raw.GatherV2(params=x, indices=table_ids, axis=1, batch_dims=1),
            raw.GatherNd(params=x, indices=pairs),
            raw.OneHot(indices=ids, depth=7, on_value=2.0, off_value=-1.0, axis=-1),
            raw.OneHot(indices=ids, depth=7, on_value=2.0, off_value=-1.0, axis=0),
            tf.gather(x, ids, axis=0) * 2.0,
        ]

    random = np.random.default_rng(4)
    pairs = np.stack([random.integers(0, 5, 6), random.integers(0, 7, 6)], 1)
    feeds = (_normal(5, 5, 7, 3), random.integers(0, 5, (4,)), pairs, random.integers(0, 7, (5, 2)))
    return Step(step, feeds)


def scatters() -> Step:
    def step(x: Any, at: Any, values: Any) -> Any:
        found = [raw.ScatterNd(indices=at, updates=values, shape=[9, 5])]
        for name in ("Add", "Sub", "Max", "Min", "Update"):
            scatter = getattr(raw, f"TensorScatter{name}")
            found.append(scatter(tensor=x, indices=at, updates=values))
        return found

    at = np.array([[3], [0], [8], [5]])
    return Step(step, (_normal(6, 9, 5), at, _normal(7, 4, 5)))


def segments() -> Step:
    def step(x: Any, ordered: Any, ids: Any) -> Any:
        found = []
        for name in ("Sum", "Prod", "Max", "Min"):
            segment = getattr(raw, f"UnsortedSegment{name}")
            found.append(segment(data=x, segment_ids=ids, num_segments=5))
        # How many segments there are depends on data.
        for name in ("Sum", "Prod", "Max", "Min", "Mean"):
            found.append(getattr(raw, f"Segment{name}")(data=2 * x, segment_ids=ordered))
        return found

    ids = np.array([3, 1, 1, 4, 0, -1, 3, 1])
    return Step(step, (_normal(8, 8, 5), np.array([0, 0, 1, 2, 2, 2, 3, 4]), ids), dynamic=True)


def orders() -> Step:
    """Sorting, scans, the largest."""

    def step(x: Any, labels: Any) -> Any:
        narrow = tf.cast(x, tf.float32)
        return [
            *raw.TopKV2(input=x, k=3),
            tf.sort(x, axis=1),
            tf.argsort(x, axis=0),
            raw.ArgMax(input=x, dimension=0),
            raw.ArgMin(input=x, dimension=1),
            raw.Cumsum(x=x, axis=0),
            raw.Cumsum(x=x, axis=1, exclusive=True, reverse=True),
            raw.Cumprod(x=x, axis=1, exclusive=True),
            raw.CumulativeLogsumexp(x=x, axis=0),
            raw.InTopK(predictions=narrow, targets=labels, k=3),
            raw.InTopKV2(predictions=narrow, targets=labels, k=2),
        ]

    return Step(step, (_normal(9, 6, 7), np.random.default_rng(10).integers(0, 7, 6)))


def reductions() -> Step:
    def step(x: Any) -> Any:
        found = [raw.L2Loss(t=x)]
        for name in ("Sum", "Prod", "Max", "Min", "Mean", "EuclideanNorm"):
            reduce = getattr(raw, name)
            found.append(reduce(input=x, axis=[1]))
            found.append(reduce(input=x, axis=[0, 2], keep_dims=True))
        found += [raw.Softmax(logits=x[0]), raw.LogSoftmax(logits=x[:, 1])]
        return found

    return Step(step, (_normal(11, 5, 6, 7),))


def products() -> Step:
    def step(a: Any, b: Any, c: Any) -> Any:
        return [
            raw.MatMul(a=a[0], b=b[0]),
            raw.MatMul(a=a[0], b=a[1], transpose_a=True),
            raw.BatchMatMul(x=a, y=b),
            raw.BatchMatMulV2(x=a, y=b[:1]),
            raw.BatchMatMulV3(x=a, y=a, Tout=tf.float64, adj_y=True),
            raw.Einsum(inputs=[a, c], equation="bij,kjb->ik"),
            raw.BiasAdd(value=a, bias=c[0, :, 0]),
            raw.BiasAddV1(value=a, bias=c[0, :, 0]),
            raw.BiasAddGrad(out_backprop=a),
        ]

    return Step(step, (_normal(12, 3, 5, 7), _normal(13, 3, 7, 4), _normal(14, 2, 7, 3)))


def linear_algebra() -> Step:
    def step(m: Any, b: Any) -> Any:
        spd = tf.matmul(m, m, transpose_b=True) + 3 * tf.eye(4, dtype=tf.float64)
        lower = raw.Cholesky(input=spd)
        return [
            lower,
            raw.CholeskyGrad(l=lower, grad=m),
            raw.MatrixDeterminant(input=spd),
            *raw.LogMatrixDeterminant(input=spd),
            raw.MatrixInverse(input=spd),
            raw.MatrixSolve(matrix=spd, rhs=b),
            raw.MatrixTriangularSolve(matrix=lower, rhs=b),
            *raw.Qr(input=m),
            *raw.SelfAdjointEigV2(input=spd),
            raw.Svd(input=m, compute_uv=False).s,
        ]

    return Step(step, (_normal(15, 3, 4, 4), _normal(16, 3, 4, 5)), 1e-9)  # inverts


def sparse_products() -> Step:
    """A sparse matrix by a dense one; how often each number comes."""

    def step(places: Any, values: Any, dense: Any, numbers: Any, weights: Any) -> Any:
        matrix = {"a_indices": places, "a_values": values, "a_shape": [6, 5]}
        return [
            raw.SparseTensorDenseMatMul(**matrix, b=dense),
            raw.DenseBincount(input=numbers, size=6, weights=weights),
        ]

    random = np.random.default_rng(24)
    places = np.array([[0, 1], [2, 4], [2, 0], [4, 3], [5, 1]])
    feeds = (_normal(25, 5), _normal(26, 5, 3), random.integers(0, 6, (4, 7)), _normal(27, 4, 7))
    return Step(step, (places, *feeds))


def diagonals() -> Step:
    def step(x: Any, d: Any) -> Any:
        return [
            raw.DiagPart(input=2 * x[0]),
            raw.MatrixBandPart(input=x, num_lower=1, num_upper=2),
            raw.MatrixDiag(diagonal=d),
            raw.MatrixDiagV3(diagonal=d, k=0, num_rows=-1, num_cols=-1, padding_value=0.5),
            raw.MatrixDiagPart(input=x),
            raw.MatrixDiagPartV3(input=x, k=0, padding_value=0.0),
            raw.MatrixSetDiag(input=x, diagonal=d),
            raw.MatrixSetDiagV3(input=x, diagonal=d, k=0),
        ]

    return Step(step, (_normal(17, 3, 5, 5), _normal(18, 3, 5)))


def transforms() -> Step:
    """Complex numbers and Fourier."""

    def step(x: Any, y: Any) -> Any:
        z = raw.Complex(real=x, imag=y, Tout=tf.complex128)
        half = raw.RFFT(input=x, fft_length=[7], Tcomplex=tf.complex128)
        planes = raw.RFFT2D(input=x, fft_length=[5, 7], Tcomplex=tf.complex128)
        return [
            raw.Real(input=z, Tout=tf.float64) * 2,
            raw.Imag(input=z, Tout=tf.float64) * 2,
            raw.Conj(input=z),
            raw.Angle(input=z, Tout=tf.float64),
            raw.ComplexAbs(x=z, Tout=tf.float64),
            raw.ConjugateTranspose(x=z, perm=[0, 2, 1]),
            raw.FFT(input=z),
            raw.IFFT(input=z),
            raw.FFT2D(input=z),
            raw.IFFT2D(input=z),
            half,
            raw.IRFFT(input=2 * half, fft_length=[7], Treal=tf.float64),
            planes,
            raw.IRFFT2D(input=2 * planes, fft_length=[5, 7], Treal=tf.float64),
        ]

    return Step(step, (_normal(19, 3, 5, 7), _normal(20, 3, 5, 7)))


def losses() -> Step:
    w = variable(_normal(21, 5, 7))

    def step(x: Any, labels: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.matmul(x, w)
            sparse = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            dense = tf.nn.softmax_cross_entropy_with_logits(wanted, logits)
            kept = tf.nn.log_softmax(logits) + tf.nn.softmax(logits)
            loss = tf.reduce_mean(sparse + dense) + tf.reduce_sum(kept) + tf.nn.l2_loss(w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss, dense

    random = np.random.default_rng(22)
    wanted = random.dirichlet(np.ones(7), 6)
    return Step(step, (_normal(23, 6, 5), random.integers(0, 7, 6), wanted))


def draws() -> Step:
    """Random numbers of a given seed, and of a generator."""
    generator = tf.random.Generator.from_seed(5)

    def step(seed: Any) -> Any:
        shape = (5, 7)
        half = tf.random.stateless_normal(shape, seed, dtype=tf.float16)
        whole = {"minval": None, "maxval": None, "dtype": tf.int64}
        return [
            tf.random.stateless_uniform(shape, seed, dtype=tf.float64),
            tf.random.stateless_normal(shape, seed, dtype=tf.float64),
            tf.random.stateless_truncated_normal(shape, seed, dtype=tf.float64),
            tf.random.stateless_uniform(shape, seed, -3, 90, tf.int32),
            tf.random.stateless_uniform(shape, seed, **whole),
            tf.cast(half, tf.float64) + generator.normal(shape, dtype=tf.float64),
        ]

    return Step(step, (np.array([3, 9]),))
