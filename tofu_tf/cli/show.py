"""``tofu-tf show GRAPH``: what each device does and what moves between them, in tables, texts and
drawings.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2

from tofu_tf.capture.graph_defs import effectful
from tofu_tf.cli import graphs
from tofu_tf.errors import FlagError
from tofu_tf.graph.persistence import step_of
from tofu_tf.pipeline import apply_plan, with_bytes
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.text import summary_lines, whole_lines
from tofu_tf.report import drawings, tables
from tofu_tf.report.communication import moved_by_kind
from tofu_tf.report.counting import count_communication, edge_nodes
from tofu_tf.report.devices import device_shares
from tofu_tf.report.pictures import tensor_picture
from tofu_tf.report.pieces import op_picture
from tofu_tf.rewrite.exporting import exported
from tofu_tf.rewrite.text import placed_text


def run(arguments: Sequence[str], values: Any) -> None:
    """Prints tables of the graph that `arguments` name, or what the flags ask for instead."""
    path = graphs.one_path(arguments, "show")
    graph_def = graphs.read(path)
    if not values.plan and _is_placed(graph_def):
        _show_placed(graph_def, values)
    else:
        _show_planned(path, values)


def _is_placed(graph_def: graph_pb2.GraphDef) -> bool:
    return all(n.device for n in graph_def.node) and len(graphs.devices_of(graph_def)) > 1


def _show_placed(graph_def: graph_pb2.GraphDef, values: Any) -> None:
    asked = [f"--{name}" for name in ("op", "tensor") if values[name].value]
    if asked:
        raise FlagError(
            " ".join(asked),
            "the graph is placed already, and does not tell its plan",
            "a graph for one device",
            "give the original graph and --plan, or --text to list the nodes",
        )
    if values.text:
        sys.stdout.write(placed_text(graph_def))
        return
    graph_def = step_of(graph_def)
    feeds, results = edge_nodes(graph_def)
    if not _draw(graph_def, feeds, results, values):
        counted = count_communication(graph_def, feeds, results)
        tables.show(
            tables.devices_table(device_shares(graph_def, counted)),
            tables.receivers_table(counted),
            "\n".join(tables.counted_lines(counted)),
        )


def _show_planned(path: str, values: Any) -> None:
    found = graphs.planned(path, values, values.plan)
    graph, plan = found.graph, found.plan
    choosing = Choosing(plan.machine.device_type) if values.lowering == "collective" else None
    if values.op or values.tensor:
        texts = [tensor_picture(graph, plan, values.tensor)] if values.tensor else []
        if values.op:
            texts.append(op_picture(graph, plan, values.op, found.describing, choosing))
        sys.stdout.write("\n\n".join(texts) + "\n")
        return
    if choosing:
        plan = with_bytes(graph, plan, values.lowering, found.describing)
    placed = apply_plan(graph, plan, values.lowering, found.describing)
    waiting = effectful(found.program.graph_def, found.fetches)
    result = exported(placed, graph, found.fetches, found.operations, waiting)
    if values.text:
        sys.stdout.write(placed_text(result))
    elif not _draw(result, placed.feed_nodes, placed.result_nodes, values):
        counted = count_communication(result, placed.feed_nodes, placed.result_nodes)
        tables.show(
            "\n".join((*summary_lines(plan), *whole_lines(plan))),
            tables.devices_table(device_shares(result, counted)),
            tables.kinds_table(
                moved_by_kind(graph, plan, found.describing, choosing), choosing is not None
            ),
            "\n".join(tables.counted_lines(counted)),
        )


def _draw(
    graph_def: graph_pb2.GraphDef, feeds: Collection[str], results: Collection[str], values: Any
) -> bool:
    """Whether drawings were asked for; writes them."""
    for flag, write in (
        ("dot", lambda path: drawings.write_dot(graph_def, path, feeds, results)),
        ("tensorboard", lambda path: drawings.write_tensorboard(graph_def, path)),
    ):
        path = values[flag].value
        if not path:
            continue
        try:
            made = write(path)
        except OSError as error:
            seen = error.strerror or str(error)
            raise FlagError(f"--{flag}={path}", seen, "a place to write to") from error
        tables.show(f"written to {made or path}")
    return bool(values.dot or values.tensorboard)
