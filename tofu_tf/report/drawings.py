"""A placed GraphDef as files that other programs draw: Graphviz, TensorBoard's graph tab."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tofu_tf.report.counting import (
    COLLECTIVES,
    Communication,
    collective_groups,
    count_communication,
    full_device,
    infer_shapes,
    producer,
    tensor_name,
)

MOST = 400  # boxes of a drawing; larger graphs are drawn by groups of nodes
# One for each device, in turn: light enough for black text on them.
COLOURS = (
    "#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5",
    "#d9d9d9", "#bc80bd", "#ccebc5", "#ffed6f",
)  # fmt: skip
_PIECE = re.compile(r"/(piece\d+|result\d+)(?=[/_]|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class _Box:
    """What is drawn as one box: nodes of one device under one name."""

    name: str
    device: str


def dot_text(
    graph_def: graph_pb2.GraphDef,
    feeds: Collection[str] = (),
    results: Collection[str] = (),
    most: int = MOST,
) -> str:
    """A placed graph in Graphviz's language: devices as clusters of one colour, edges between them
    red, with their bytes.

    A graph of more than `most` nodes is drawn by groups: on each device the nodes of one scope, as
    deep as the number of boxes allows. `feeds` and `results` as in `count_communication`, whose
    errors it raises.
    """
    counted = count_communication(graph_def, feeds, results)
    boxes = _boxes(graph_def, most)
    members: dict[_Box, list[str]] = defaultdict(list)
    ops = {node.name: node.op for node in graph_def.node}
    for name, box in boxes.items():
        members[box].append(name)
    numbers = {box: f"n{i}" for i, box in enumerate(members)}
    devices = list(dict.fromkeys(box.device for box in members))
    lines = [
        "digraph placed {",
        '  rankdir="TB"; compound="true";',
        '  node [shape="box", style="filled", fontname="sans-serif", fontsize="10"];',
        '  edge [fontname="sans-serif", fontsize="9", color="#555555"];',
    ]
    for d, device in enumerate(devices):
        colour = COLOURS[d % len(COLOURS)]
        lines.append(f"  subgraph cluster_{d} {{")
        lines.append(f"    label={_quoted(device)}; color={_quoted(colour)};")
        for box, names in members.items():
            if box.device == device:
                what = ops[names[0]] if len(names) == 1 else f"{len(names)} nodes"
                label = _quoted(f"{box.name}\n{what}")
                lines.append(f"    {numbers[box]} [label={label}, fillcolor={_quoted(colour)}];")
        lines.append("  }")
    for (source, target), (nbytes, control) in _edges(graph_def, boxes, counted).items():
        style = []
        if source.device != target.device:
            style = ['color="#cc0000"', 'fontcolor="#cc0000"']
            style += [f'label="{nbytes} B"'] if nbytes else []
        if control:
            style.append('style="dashed"')
        shown = f" [{', '.join(style)}]" if style else ""
        lines.append(f"  {numbers[source]} -> {numbers[target]}{shown};")
    return "\n".join([*lines, "}"]) + "\n"


def write_dot(
    graph_def: graph_pb2.GraphDef,
    path: str | os.PathLike[str],
    feeds: Collection[str] = (),
    results: Collection[str] = (),
    most: int = MOST,
) -> None:
    """Writes `dot_text` to a file; ``dot -Tsvg FILE`` draws it."""
    pathlib.Path(path).write_text(dot_text(graph_def, feeds, results, most), encoding="utf-8")


def write_tensorboard(graph_def: graph_pb2.GraphDef, directory: str | os.PathLike[str]) -> str:
    """The path of the event file written to `directory`, which ``tensorboard --logdir`` opens.

    Its graph tab colours by device; a node's pieces are scopes of their own below it, and edges say
    their shapes.
    """
    shown = infer_shapes(graph_def).as_graph_def(add_shapes=True)
    shown.library.CopyFrom(graph_def.library)
    target = pathlib.Path(directory)
    before = set(target.glob("events.out.tfevents.*"))
    with tf.init_scope():
        writer = tf.summary.create_file_writer(str(target))
        with writer.as_default():
            tf.summary.graph(shown)
        writer.close()
    (made,) = set(target.glob("events.out.tfevents.*")) - before
    return str(made)


def _boxes(graph_def: graph_pb2.GraphDef, most: int) -> dict[str, _Box]:
    """The box of every node: its own, or its scope's on its device where there are too many."""
    places = {node.name: full_device(node.device) for node in graph_def.node}
    if len(places) <= most:
        return {name: _Box(name, place) for name, place in places.items()}
    # The scopes of the original graph: what a piece is made of belongs to its node.
    scopes = {name: _PIECE.split(name, maxsplit=1)[0].split("/") for name in places}
    deepest = max(map(len, scopes.values()))
    for depth in range(deepest, 0, -1):
        found = {
            name: _Box("/".join(scopes[name][:depth]), place) for name, place in places.items()
        }
        if len(set(found.values())) <= most or depth == 1:
            break
    if len(set(found.values())) <= most:
        return found
    return {name: _Box("all", place) for name, place in places.items()}


def _edges(
    graph_def: graph_pb2.GraphDef, boxes: Mapping[str, _Box], counted: Communication
) -> dict[tuple[_Box, _Box], tuple[int, bool]]:
    """(bytes between devices, whether all of it is order only) of every edge between boxes.

    A tensor that crosses to a device counts on its first edge there, as it crosses once.
    """
    sent = {
        (t.tensor, t.destination): t.nbytes
        for t in (*counted.transfers, *counted.fed, *counted.fetched)
        if t.kind not in COLLECTIVES
    }
    edges: dict[tuple[_Box, _Box], tuple[int, bool]] = {}
    for node in graph_def.node:
        target = boxes[node.name]
        for text in node.input:
            source, order = boxes[producer(text)], text.startswith("^")
            if source == target:
                continue
            nbytes = 0 if order else sent.pop((tensor_name(text), target.device), 0)
            before, only_order = edges.get((source, target), (0, True))
            edges[source, target] = (before + nbytes, only_order and order)
    # A collective's members give to each other along no edge.
    shares = {(t.tensor, t.kind): t.nbytes for t in counted.transfers if t.kind in COLLECTIVES}
    for members in collective_groups({node.name: node for node in graph_def.node}).values():
        for one, other in zip(members, [*members[1:], members[0]], strict=True):
            ends = (boxes[one.name], boxes[other.name])
            share = shares[tensor_name(one.input[0]), one.op]
            edges[ends] = (edges.get(ends, (0, True))[0] + share, False)
    return edges


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
