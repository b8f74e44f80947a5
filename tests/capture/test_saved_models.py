"""Exported graphs in every form: what they compute, and where their variables' values come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tofu_tf.capture.saved_models import load_program, persistence_of
from tofu_tf.errors import GraphError
from tofu_tf.graph.persistence import Saver

v1 = tf.compat.v1


def trained() -> meta_graph_pb2.MetaGraphDef:
    """A step that trains one of two variables, their initialisers and a Saver."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [8, 4], "x")
        with v1.variable_scope("", use_resource=True):
            w = v1.get_variable("w", [4, 3], initializer=v1.ones_initializer())
            b = v1.get_variable("b", [3], initializer=v1.zeros_initializer())
        loss = tf.reduce_sum((x @ w + b) ** 2, name="loss")
        v1.add_to_collection("losses", loss)
        step = v1.assign_sub(w, tf.gradients(loss, w)[0], use_locking=True)
        v1.add_to_collection("train_op", tf.group(step, name="train"))
        v1.variables_initializer([w, b], "start")
        v1.variables_initializer([b], "start_b")
        v1.train.Saver()
        return v1.train.export_meta_graph(graph=graph)


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones([4, 3]), name="kernel")
        self.seen = tf.Variable(0, name="seen")

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def infer(self, x: Any) -> Any:
        return {"y": x @ self.w}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def count(self, x: Any) -> Any:
        self.seen.assign_add(tf.shape(x)[0])
        return {"rows": tf.shape(x)[0], "seen": tf.identity(self.seen)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, path = Module(), tmp_path_factory.mktemp("saved") / "model"
    tf.saved_model.save(module, str(path), {"serving_default": module.infer, "count": module.count})
    return path


def saved_model(path: Path) -> saved_model_pb2.SavedModel:
    return saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())


WRITTEN = {
    "step.pb": lambda: trained().graph_def.SerializeToString(),
    "step.pbtxt": lambda: text_format.MessageToString(trained().graph_def).encode(),
    "step.meta": lambda: trained().SerializeToString(),
    "meta.pbtxt": lambda: text_format.MessageToString(trained()).encode(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_every_form(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(WRITTEN[name]())
    program = load_program(tmp_path / name, ["loss"], ["train"])
    assert (program.fetches, program.targets) == (("loss",), ("train",))
    assert program.graph_def == trained().graph_def
    assert (program.meta is not None) == ("meta" in name)


def test_what_collections_name() -> None:
    program = load_program(trained())
    assert (program.fetches, program.targets) == (("loss:0",), ("train",))


@pytest.mark.parametrize(
    "signature, fetches",
    [
        (None, ("StatefulPartitionedCall_1:0",)),
        ("serving_default", ("StatefulPartitionedCall_1:0",)),
        ("count", ("StatefulPartitionedCall:0", "StatefulPartitionedCall:1")),
    ],
)
def test_signatures(saved: Path, signature: str | None, fetches: tuple[str, ...]) -> None:
    held = saved_model(saved)
    for form in (saved, saved / "saved_model.pb", held, held.meta_graphs[0]):
        program = load_program(form, signature=signature)
        assert program.fetches == fetches
        assert program.signature == (signature or "serving_default")
        assert program.directory == (saved if isinstance(form, Path) else None)


def test_names_instead_of_a_signature(saved: Path) -> None:
    program = load_program(saved, ["StatefulPartitionedCall:1"])
    assert (program.fetches, program.signature) == (("StatefulPartitionedCall:1",), "")


@pytest.mark.parametrize(
    "form, signature, words",
    [
        ("saved", "train", ["'train'", "'count', 'serving_default'", "--signature"]),
        ("unnamed", "train", ["'train'", "it has none", "--fetches"]),
        ("unnamed", None, ["'serving_default'", "it has none", "--fetches"]),
        ("graph", "train", ["bare GraphDef", "--fetches"]),
        ("nothing", None, ["without graphs"]),
    ],
)
def test_signatures_that_do_not_exist(
    saved: Path, form: str, signature: str | None, words: list[str]
) -> None:
    unnamed = meta_graph_pb2.MetaGraphDef(graph_def=trained().graph_def)
    forms: dict[str, Any] = {
        "saved": saved,
        "unnamed": unnamed,
        "graph": trained().graph_def,
        "nothing": saved_model_pb2.SavedModel(),
    }
    with pytest.raises(GraphError) as caught:
        load_program(forms[form], signature=signature)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("bare", [False, True])
def test_initialisers_and_saver_of_v1(bare: bool) -> None:
    """Of a bare GraphDef they are found by what the nodes do."""
    held = trained().graph_def if bare else trained()
    found = persistence_of(load_program(held, ["loss"], ["train"]))
    assert set(found.initial) == {"w", "b"}
    assert found.initializers == {"start": ("b", "w"), "start_b": ("b",)}
    assert found.keys == {"w": "w", "b": "b"}
    assert found.saver == Saver("save/Const:0", "save/control_dependency:0", "save/restore_all")
    values = graph_pb2.GraphDef()
    values.CopyFrom(found.graph_def)
    with tf.Graph().as_default(), v1.Session() as session:
        tf.graph_util.import_graph_def(values, name="")
        w = session.run(session.graph.get_tensor_by_name(f"{found.initial['w']}:0"))
    np.testing.assert_array_equal(w, np.ones([4, 3]))


def test_what_trains_initialises_nothing() -> None:
    """An assignment of a step is none of its initialisers, whatever it assigns."""
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [4], initializer=v1.ones_initializer(), use_resource=True)
        reset = tf.raw_ops.AssignVariableOp(resource=w.handle, value=tf.zeros([4]))
        tf.group(reset, name="reset")
    found = persistence_of(load_program(graph.as_graph_def(), [], ["reset"]))
    assert found.initial == {"w": "w/Initializer/ones"}
    assert found.saver is None


def test_checkpoint_of_a_saved_model(saved: Path) -> None:
    found = persistence_of(load_program(saved))
    assert found.initial == {}
    assert found.keys == {
        "kernel": "w/.ATTRIBUTES/VARIABLE_VALUE",
        "seen": "seen/.ATTRIBUTES/VARIABLE_VALUE",
    }
    assert list(found.constants) == ["_CHECKPOINTABLE_OBJECT_GRAPH"]
    assert found.saver is not None
    assert (found.saver.filename, found.saver.fed) == ("saver_filename:0", True)


def test_a_part_of_an_entry_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        v1.get_variable("w", [4, 2], partitioner=v1.fixed_size_partitioner(2), use_resource=True)
        v1.train.Saver()
        tf.constant(1.0, name="y")
    with pytest.raises(GraphError, match="without a partitioner"):
        persistence_of(load_program(graph.as_graph_def(), ["y"]))
