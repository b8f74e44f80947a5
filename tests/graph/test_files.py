"""GraphDef files: what is written is read, and what cannot be read says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tofu_tf.errors import GraphError
from tofu_tf.graph import files
from tofu_tf.graph.files import read_graph_def, write_graph_def


def small() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 3), "x")
        tf.matmul(x, tf.ones((3, 4)), name="y")
    return graph.as_graph_def()


@pytest.mark.parametrize("name", ["g.pb", "g.pbtxt", "g.graph"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    write_graph_def(small(), tmp_path / name)
    assert read_graph_def(tmp_path / name) == small()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_text_under_another_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "g.pb").write_text(text_format.MessageToString(small()))
    assert read_graph_def(tmp_path / "g.pb") == small()


META = meta_graph_pb2.MetaGraphDef(graph_def=small())
META.meta_info_def.tags.append("serve")
SAVED = saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[META])
BINARY = small().SerializeToString()
TEXT = text_format.MessageToString(small())


@pytest.mark.parametrize(
    "name, data, seen",
    [
        ("g.pb", b"", "an empty file"),
        ("g.pb", BINARY[:-1], "lacks 1 more: truncated"),
        ("g.pb", BINARY[: len(BINARY) // 2], "truncated"),
        ("g.pb", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "no GraphDef"),
        ("g.pb", b"# A readme\nof words", "no GraphDef"),
        ("g.pb", SAVED.SerializeToString(), "a SavedModel"),
        ("g.pb", META.SerializeToString(), "a MetaGraphDef"),
        ("g.pb", graph_pb2.GraphDef(version=3).SerializeToString(), "no nodes"),
        ("g.pbtxt", b"", "an empty file"),
        ("g.pbtxt", BINARY, "binary data in a text file"),
        ("g.pbtxt", b"\xff\xfe", "binary data in a text file"),
        ("g.pbtxt", TEXT[: len(TEXT) - 10].encode(), "truncated?"),
        ("g.pbtxt", b"name: 'x'", "no field named"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, data: bytes, seen: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(GraphError) as caught:
        read_graph_def(path)
    assert seen in caught.value.seen
    assert caught.value.where == str(path)
    assert "GraphDef" in caught.value.expected


def test_what_is_no_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="No such file"):
        read_graph_def(tmp_path / "absent.pb")
    with pytest.raises(GraphError, match="a directory"):
        read_graph_def(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(GraphError, match="directory of a SavedModel"):
        read_graph_def(tmp_path)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LIMIT", 100)
    (tmp_path / "g.pb").write_bytes(BINARY)
    with pytest.raises(GraphError, match="more than a protocol buffer can hold"):
        read_graph_def(tmp_path / "g.pb")
    with pytest.raises(GraphError, match="what a protocol buffer can hold"):
        write_graph_def(small(), tmp_path / "h.pb")
    assert not (tmp_path / "h.pb").exists()


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="No such file or directory"):
        write_graph_def(small(), tmp_path / "absent" / "g.pb")
