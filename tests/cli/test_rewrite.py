"""tofu-tf rewrite: what it writes where, and input that it refuses without writing anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tofu_tf.cli import main as cli
from tofu_tf.cli import rewrite
from tofu_tf.graph.files import LIMIT, read_exported
from tofu_tf.report.checking import Problem, check_placement

v1 = tf.compat.v1


def trained() -> meta_graph_pb2.MetaGraphDef:
    """A step of one layer, what initialises it and its Saver."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 48], "x")
        y = v1.placeholder(tf.int32, [None], "y")
        start = v1.glorot_uniform_initializer(seed=1)
        w = v1.get_variable("w", [48, 40], initializer=start, use_resource=True)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w)
        loss = tf.reduce_mean(each, name="loss")
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        v1.global_variables_initializer()
        v1.train.Saver()
        return v1.train.export_meta_graph(graph=graph)


def with_python() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [8, 4], "x")
        tf.identity(tf.numpy_function(np.sin, [x], tf.float32), "y")
        tf.abs(x, "z")
    return graph.as_graph_def()


def with_references() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [4, 4], use_resource=False)
        tf.matmul(v1.placeholder(tf.float32, [8, 4], "x"), w, name="y")
    return graph.as_graph_def()


def placed() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        with tf.device("/device:CPU:0"):
            x = v1.placeholder(tf.float32, [8, 4], "x")
        with tf.device("/device:CPU:1"):
            tf.abs(x, name="y")
    return graph.as_graph_def()


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones([32, 24]), name="w")

    @tf.function(input_signature=[tf.TensorSpec([None, 32], tf.float32, name="x")])
    def infer(self, x: Any) -> Any:
        return {"y": tf.nn.relu(x @ self.w)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with graphs."""
    path = tmp_path_factory.mktemp("sources")
    held = trained()
    (path / "step.meta").write_bytes(held.SerializeToString())
    (path / "step.pb").write_bytes(held.graph_def.SerializeToString())
    (path / "cut.pb").write_bytes(held.graph_def.SerializeToString()[:-9])
    (path / "notes.pb").write_text("These are no nodes.")
    (path / "python.pb").write_bytes(with_python().SerializeToString())
    (path / "references.pb").write_bytes(with_references().SerializeToString())
    (path / "placed.pb").write_bytes(placed().SerializeToString())
    with (path / "huge.pb").open("wb") as huge:
        huge.truncate(LIMIT + 1)  # no bytes on the disk
    module = Module()
    tf.saved_model.save(module, str(path / "model"), {"serving_default": module.infer})
    (path / "cut").mkdir()
    data = (path / "model" / "saved_model.pb").read_bytes()
    (path / "cut" / "saved_model.pb").write_bytes(data[: len(data) // 2])
    (path / "empty").mkdir()
    return path


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], sources: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[int, str, str]]:
    """A function from a command line to exit code, stdout and stderr."""
    monkeypatch.chdir(sources)

    def run(line: str) -> tuple[int, str, str]:
        code = cli.main(line.split())
        out, err = capsys.readouterr()
        return code, out, err

    return run


STEP = "--fetches=loss --targets=train --batch=16"
TO = "--output=new.pb"
BAD = [
    (f"step.pb {STEP}", "no --output", "placed.pb"),
    (f"step.pb --fetches=loss --batch=16 --signature=train {TO}", "bare GraphDef", "--fetches"),
    (f"step.pb --fetches=lost --batch=16 {TO}", "lost", "names of its nodes"),
    (f"step.pb --batch=16 {TO}", "it has variables", "--fetches"),
    (f"step.pb --fetches=loss {TO}", "x (None, 48)", "--batch"),
    (f"step.pb {STEP} --output=new", "bare GraphDef", ".pb or .pbtxt"),
    (f"step.pb {STEP} --output=new.meta", "bare GraphDef", ".pb or .pbtxt"),
    (f"step.pb {STEP} --output=absent/new.pb", "No such file", "can be written to"),
    (f"step.meta {STEP} --output=absent/new", "No such file", "can be written"),
    (f"step.meta {STEP} --output=model", "it exists already", "remove it"),
    (f"step.meta --signature=train --batch=16 {TO}", "no signature 'train'", "--fetches"),
    (f"step.meta {STEP} {TO} --plan=absent.json", "cannot be read", "a plan file"),
    (f"model --signature=train --batch=16 {TO}", "no signature 'train'", "'serving_default'"),
    (f"model --batch=16 {TO} --devices=97", "97 workers", "fewer devices"),
    (f"notes.pb {TO}", "no GraphDef", "tf.io.write_graph"),
    (f"cut.pb {STEP} {TO}", "truncated", "write it again"),
    (f"cut {TO}", "truncated", "write it again"),
    (f"huge.pb {TO}", "huge.pb: 2147483648 bytes", "weights as variables"),
    (f"empty {TO}", "without saved_model.pb", "tf.saved_model.save"),
    (f"absent.pb {TO}", "No such file", "a readable file"),
    (f"python.pb --fetches=y {TO}", "(PyFunc)", "fetch what does not need them"),
    (f"references.pb --fetches=y {TO}", "w (VariableV2)", "enable_resource_variables"),
    (f"placed.pb --fetches=y {TO}", "already placed on 2 devices", "without devices"),
]


@pytest.mark.parametrize("line, seen, remedy", BAD)
def test_bad_input(call: Any, sources: Path, line: str, seen: str, remedy: str) -> None:
    before = sorted(sources.rglob("*"))
    code, out, err = call(f"rewrite --devices=2 {line}")
    assert (code, out) == (cli.BAD_INPUT, "")
    assert seen in err
    assert remedy in err
    assert len(err.splitlines()) <= 24
    assert sorted(sources.rglob("*")) == before


def test_what_cannot_run_where_it_is_placed(
    call: Any, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(sources.rglob("*"))
    found = [Problem("loss/piece0", "no GPU kernel for Mean(T=int8)")]
    monkeypatch.setattr(rewrite, "check_placement", lambda graph_def: found)
    code, out, err = call(f"rewrite step.pb {STEP} {TO}")
    assert (code, out) == (cli.BAD_INPUT, "")
    assert "loss/piece0: no GPU kernel for Mean(T=int8)" in err
    assert sorted(sources.rglob("*")) == before


def test_python_that_is_not_fetched_is_no_matter(call: Any, tmp_path: Path) -> None:
    code, _, err = call(f"rewrite python.pb --fetches=z --devices=2 --output={tmp_path}/new.pb")
    assert (code, err) == (cli.FINE, "")


@pytest.mark.parametrize(
    "line, output, kind",
    [
        (f"step.pb {STEP}", "new.pb", graph_pb2.GraphDef),
        (f"step.pb {STEP} --lowering=collective", "new.pbtxt", graph_pb2.GraphDef),
        (f"step.meta {STEP}", "new.meta", meta_graph_pb2.MetaGraphDef),
        (f"step.meta {STEP}", "new", saved_model_pb2.SavedModel),
        ("model --batch=16", "new.pb", graph_pb2.GraphDef),
        ("model --batch=16", "new", saved_model_pb2.SavedModel),
    ],
)
@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_what_is_written(
    call: Any, tmp_path: Path, line: str, output: str, kind: type, device: str
) -> None:
    path = tmp_path / output
    code, out, err = call(f"rewrite {line} --output={path} --devices=3 --device_type={device}")
    assert (code, err) == (cli.FINE, "")
    assert f"written to {path}" in " ".join(out.split())
    assert [p.name for p in tmp_path.iterdir()] == [output]
    held = read_exported(path)
    assert type(held) is kind
    if isinstance(held, saved_model_pb2.SavedModel):
        (held,) = held.meta_graphs
    graph_def = held.graph_def if isinstance(held, meta_graph_pb2.MetaGraphDef) else held
    assert check_placement(graph_def) == []
    parts = {node.device.rpartition("/device:")[2] for node in graph_def.node}
    assert parts >= {f"{device}:{i}" for i in range(3)}
    assert parts <= {"CPU:0", *(f"{device}:{i}" for i in range(3))}
    texts = {n.device[-5:] for n in graph_def.node if n.op in ("SaveV2", "RestoreV2")}
    assert texts
    assert "GPU" not in "".join(texts)


def test_the_checkpoint_goes_along(call: Any, sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "new"
    code, _, _ = call(f"rewrite model --batch=16 --devices=3 --output={path}")
    assert code == cli.FINE
    for file in (sources / "model" / "variables").iterdir():
        assert (path / "variables" / file.name).read_bytes() == file.read_bytes()


def test_a_placed_graph_is_counted_without_what_initialises_it(call: Any, tmp_path: Path) -> None:
    line = f"step.pb {STEP} --devices=3"
    _, out, _ = call(f"rewrite {line} --output={tmp_path}/new.pb")
    (said,) = (text for text in out.splitlines() if text.startswith("counted communication"))
    for command in ("count", "show"):
        code, out, _ = call(f"{command} {tmp_path}/new.pb")
        assert code == cli.FINE
        assert said in out
