"""Drawings: Graphviz's language by a small grammar, TensorBoard's file read back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.util import event_pb2

import tofu_tf
from tofu_tf.pipeline import partition
from tofu_tf.report.counting import count_communication, edge_nodes
from tofu_tf.report.drawings import dot_text, write_tensorboard

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|[A-Za-z_][A-Za-z0-9_]*|[{}\[\]=;,]')


class Dot:
    """What a text in Graphviz's language says; ValueError where its grammar does not hold."""

    def __init__(self, text: str) -> None:
        self.nodes: dict[str, tuple[str, dict[str, str]]] = {}  # name -> (cluster, attributes)
        self.edges: list[tuple[str, str, dict[str, str]]] = []
        self.clusters: dict[str, str] = {}
        if TOKEN.sub("", text).strip():
            raise ValueError(f"no token: {TOKEN.sub('', text).strip()[:40]}")
        self.tokens = TOKEN.findall(text)
        for wanted in ("digraph", None, "{"):
            self.take(wanted)
        self.statements("")
        if self.tokens:
            raise ValueError("text after the graph")

    def take(self, wanted: str | None = None) -> str:
        found = self.tokens.pop(0)
        if wanted is not None and found != wanted:
            raise ValueError(f"{found} instead of {wanted}")
        return found

    def statements(self, cluster: str) -> None:
        while self.tokens[0] != "}":
            name = self.take()
            if name == "subgraph":
                inner = self.take()
                self.take("{")
                self.statements(inner)
                continue
            if self.tokens[0] == "=":
                self.take()
                value = self.take()
                if name == "label":
                    self.clusters[cluster] = value.strip('"')
            elif self.tokens[0] == "->":
                self.take()
                self.edges.append((name, self.take(), self.attributes()))
            elif name not in ("node", "edge"):
                self.nodes[name] = (cluster, self.attributes())
            else:
                self.attributes()
            self.take(";")
        self.take("}")

    def attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.tokens[0] != "[":
            return found
        self.take()
        while self.tokens[0] != "]":
            name = self.take()
            self.take("=")
            found[name] = self.take().strip('"')
            if self.tokens[0] == ",":
                self.take()
        self.take("]")
        return found


def layer(lowering: str = "p2p", k: int = 4) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (16, 24), "x")
        w = tf.constant(np.ones((24, 16)), tf.float32, name="dense/w")
        tf.nn.relu(tf.matmul(x, w, name="dense/product"), name="y")
    cuts = {"dense/product": ("d0", None), "y": (None, "d0")}
    placed, _ = partition(
        graph.as_graph_def(), fetches=["y"], machine=k, constraints=cuts, lowering=lowering
    )
    return placed


@pytest.mark.parametrize("lowering", ["p2p", "collective"])
@pytest.mark.parametrize("most", [400, 20, 12, 1])
def test_every_device_is_a_cluster_and_all_bytes_are_on_edges(lowering: str, most: int) -> None:
    placed = layer(lowering)
    edges = edge_nodes(placed)
    dot = Dot(dot_text(placed, *edges, most=most))
    assert len(dot.clusters) == 4
    colours = {cluster: attrs["fillcolor"] for cluster, attrs in dot.nodes.values()}
    assert len(set(colours.values())) == 4
    assert len(dot.nodes) <= max(most, 4)
    assert (len(dot.nodes) == len(placed.node)) == (most == 400)
    counted = count_communication(placed, *edges)
    drawn = 0
    for source, target, attrs in dot.edges:
        crosses = dot.nodes[source][0] != dot.nodes[target][0]
        assert crosses == ("color" in attrs)
        drawn += int(attrs.get("label", "0 B").removesuffix(" B"))
    assert drawn == counted.total + counted.feeds + counted.results > 0


def test_names_of_every_kind() -> None:
    graph = graph_pb2.GraphDef()
    for i in range(2):
        node = graph.node.add(name=f"a\\{i}", op="NoOp", device=f"/device:CPU:{i}")
    node.input.append("^a\\0")
    dot = Dot(dot_text(graph))
    assert [attrs["label"] for _, attrs in dot.nodes.values()] == [r"a\\0\nNoOp", r"a\\1\nNoOp"]
    assert [attrs["style"] for _, _, attrs in dot.edges] == ["dashed"]


def events(path: str) -> list[event_pb2.Event]:
    return [event_pb2.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(path)]


def test_an_event_file_holds_the_graph(tmp_path: Path) -> None:
    placed = layer()
    made = write_tensorboard(placed, tmp_path / "logs")
    assert Path(made).parent == tmp_path / "logs"
    (graph_def,) = (e.graph_def for e in events(made) if e.graph_def)
    graph = graph_pb2.GraphDef.FromString(graph_def)
    assert {n.name: n.device for n in graph.node} == {n.name: n.device for n in placed.node}
    assert all(n.attr["_output_shapes"].list.shape for n in graph.node if n.op == "MatMul")
    # A piece is a scope of its own: no two devices have nodes in one.
    scopes: dict[str, set[str]] = {}
    for node in graph.node:
        found = re.match(r"(.*/piece\d+)(/|$)", node.name)
        if found and "/feed" not in node.name:
            scopes.setdefault(found[1], set()).add(node.device)
    assert len(scopes) > 8
    assert all(len(devices) == 1 for devices in scopes.values())
    assert write_tensorboard(placed, tmp_path / "logs") != made  # another file beside it


def test_a_step_is_drawn(tmp_path: Path) -> None:
    w = tf.Variable(np.ones((32, 32)), name="w")
    step = tofu_tf.function(lambda x: x @ w, devices=2, device_type="CPU")
    concrete = step.get_concrete_function(tf.TensorSpec([64, 32], tf.float64))
    tofu_tf.draw(concrete, dot=tmp_path / "step.dot", tensorboard=tmp_path)
    assert len(Dot((tmp_path / "step.dot").read_text()).clusters) == 2
    assert [p for p in tmp_path.iterdir() if p.name.startswith("events.out")]
