"""The programs of examples/ as a user runs them: what they print, their exit codes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tensorflow as tf
from models import MODELS, build_model

from tests.end_to_end import programs
from tofu_tf.graph import files
from tofu_tf.report import checking

DIGITS = "examples/train_digits.py"
GRAPH_DEF = "examples/partition_graphdef.py"
LOOP = "examples/custom_loop.py"


@pytest.mark.parametrize(
    "model, devices",
    [
        ("mlp", 4),
        pytest.param("cnn", 8, marks=pytest.mark.slow),
        pytest.param("wide_resnet", 8, marks=pytest.mark.slow),
    ],
)
def test_digits_are_learnt_as_on_one_device(model, devices):
    ran = programs.run(DIGITS, f"--model={model}", f"--devices={devices}", "--check")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"plan for {devices} CPU devices" in ran.stdout
    assert re.search(r"tensor +shape +layout", ran.stdout)
    (accuracy,) = re.findall(r"validation accuracy ([\d.]+)", ran.stdout)
    assert float(accuracy) > 0.95
    assert "after 5 steps within rtol" in ran.stdout
    assert re.search(r"weights after 5 steps +\d", ran.stdout)


@pytest.mark.parametrize("k", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_loop_of_ones_own(k):
    ran = programs.run(LOOP, f"--devices={k}", "--check", "--report")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (accuracy,) = re.findall(rf"^{k} devices: validation accuracy ([\d.]+)", ran.stdout, re.M)
    assert float(accuracy) > 0.95
    assert "after 5 steps losses differ by" in ran.stdout
    assert f"device:CPU:{k - 1}" in ran.stdout
    assert "of unknown size" not in ran.stdout


def test_too_little_training_is_an_error_code():
    ran = programs.run(DIGITS, "--devices=2", "--epochs=1", "--learning_rate=1e-6")
    assert ran.returncode == 1, ran.stderr
    assert "NOT above 0.95" in ran.stdout


@pytest.mark.parametrize("k", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_built_graph_is_partitioned(k, tmp_path):
    written = tmp_path / "placed.pb"
    ran = programs.run(GRAPH_DEF, f"--devices={k}", f"--output={written}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\nequal within rtol" in ran.stdout
    counted, predicted = re.findall(r"(\d+) bytes between devices, (\d+) predicted", ran.stdout)[0]
    assert int(counted) == int(predicted) > 0
    placed = files.read_graph_def(written)
    assert len({node.device for node in placed.node}) == k
    assert not checking.check_placement(placed)


@pytest.mark.parametrize(
    "suffix, as_text", [("pb", False), pytest.param("pbtxt", True, marks=pytest.mark.slow)]
)
def test_a_graph_from_a_file_is_partitioned(suffix, as_text, tmp_path):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 48], "x")
        weights = tf.random.stateless_normal([48, 64], [1, 2])
        tf.nn.softmax(tf.matmul(x, tf.constant(_value(weights))), name="probabilities")
    tf.io.write_graph(graph.as_graph_def(), str(tmp_path), f"graph.{suffix}", as_text)
    arguments = [f"--graph={tmp_path}/graph.{suffix}", "--fetches=probabilities", "--batch=30"]
    ran = programs.run(GRAPH_DEF, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\nequal within rtol" in ran.stdout


def _value(tensor: tf.Tensor):
    with tf.compat.v1.Session(graph=tensor.graph) as session:
        return session.run(tensor)


def slow(case: tuple[Any, ...]) -> Any:
    """Each is a process of its own, most of whose seconds go to importing TensorFlow."""
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "program, arguments, said",
    [
        (DIGITS, ["--model=alexnet"], "cnn|mlp|wide_resnet"),
        slow((DIGITS, ["--devices=0"], "--devices=0")),
        (DIGITS, ["--batch=1000"], "at most 287"),
        slow((DIGITS, ["--learning_rate=0"], "a learning rate is above 0")),
        slow((DIGITS, ["mlp"], "Only flags are taken")),
        (DIGITS, ["--device_type=GPU"], "GPUs"),
        (LOOP, ["--units=0"], "--units=0"),
        slow((GRAPH_DEF, ["--graph=missing.pb"], "--graph and --fetches go together")),
        (GRAPH_DEF, ["--graph=missing.pb", "--fetches=loss"], "missing.pb"),
    ],
)
def test_bad_flags_are_explained(program, arguments, said):
    ran = programs.run(program, *arguments)
    assert ran.returncode in (1, 2)
    assert said in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(ValueError, match="cnn, mlp, resnet, vgg, wide_resnet"):
        build_model("alexnet")


@pytest.mark.parametrize(
    "name, sizes, parameters",
    [
        # VGG-16 as published; three float32 a parameter are 4.3 GiB of WResNet-50-4 and 65.0 GiB
        # of WResNet-152-10, as in Tofu's evaluation.
        ("vgg", {"depth": 16}, 138_357_544),
        ("resnet", {"depth": 50, "width": 4}, 383_783_656),
        slow(("resnet", {"depth": 152, "width": 10}, 5_821_901_160)),
    ],
)
def test_models_have_their_published_sizes(name, sizes, parameters):
    with tf.Graph().as_default():  # no memory is taken for weights
        assert MODELS[name](**sizes).count_params() == parameters
