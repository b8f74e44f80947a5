"""What of a graph can be cut: counted on a small graph, and nearly all of nets of real sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tofu_tf
from tests.report.nets import NETS
from tofu_tf.capture.functions import capture_function
from tofu_tf.capture.keras_steps import capture_step
from tofu_tf.report import tables
from tofu_tf.report.coverage import OpCount, cover

QUICK = ("Conv1D", "Conv3D", "DCGAN")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETS]
)
def test_nearly_all_work_and_large_tensors_can_be_cut(name: str) -> None:
    keras.backend.clear_session()
    with tofu_tf.abstract():
        model, data = NETS[name]()
    covered = cover(capture_step(model, "train", data, abstract=True).graph)
    assert covered.flops > 1e8
    assert covered.nbytes > 1e7
    assert covered.flops_share > 0.99, covered.offenders
    assert covered.nbytes_share > 0.99, covered.offenders
    assert [row for row in covered.ops if row.reason] == []


def test_counts() -> None:
    n = 256
    weight = tf.Variable(np.ones((n, n), np.float32))

    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.relu(x @ weight)
        return tf.reduce_sum(tf.linalg.sqrtm(y)), x[:0]  # nothing is known of square roots

    graph = capture_function(step, (tf.TensorSpec((n, n)),)).graph
    covered = cover(graph)
    by_op = {row.op: row for row in covered.ops}
    assert by_op["Relu"] == OpCount("Relu", 1, (2, 2), (2, 2))
    assert by_op["MatMul"] == OpCount("MatMul", 1, (3, 3), (3, 3))
    unknown = OpCount("MatrixSquareRoot", 1, reason="no description")
    assert covered.ops[-1] == by_op["MatrixSquareRoot"] == unknown
    # a product, and one per element of relu, square root and sum
    assert covered.flops == 2 * n**3 + 3 * n**2
    assert covered.cuttable_flops == 2 * n**3 + 2 * n**2
    assert (covered.nbytes, covered.cuttable_nbytes) == (3 * 4 * n**2, 2 * 4 * n**2)
    (offender,) = covered.offenders
    assert (offender.op, offender.nbytes, offender.flops) == ("MatrixSquareRoot", 4 * n**2, n**2)
    text = tables.text_of(*tables.coverage_tables(covered))
    assert "66.67% of 768.00 KiB in tensors above 64.00 KiB" in text
    assert "not described" in text
    assert "large tensors that are never cut" in text
