"""``tofu-tf show GRAPH``: what each device does and what moves between them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2

from tofu_tf.cli import graphs
from tofu_tf.pipeline import apply_plan
from tofu_tf.plan.text import summary_lines, whole_lines
from tofu_tf.report import tables
from tofu_tf.report.communication import moved_by_kind
from tofu_tf.report.counting import count_communication
from tofu_tf.report.devices import device_shares
from tofu_tf.rewrite.exporting import exported
from tofu_tf.rewrite.text import placed_text

# What the rewriter calls the nodes that cut feeds and join results.
_FEED = re.compile(r".+/piece\d+/feed(_\d+)?")
_RESULT = re.compile(r".+/result\d+(_\d+)?(/.+)?")


def run(arguments: Sequence[str], values: Any) -> None:
    """Prints tables of the graph that `arguments` name, or with --text all its nodes."""
    graph_def = graphs.read(graphs.one_path(arguments, "show"))
    if not values.plan and _is_placed(graph_def):
        _show_placed(graph_def, values.text)
    else:
        _show_planned(graph_def, values)


def _is_placed(graph_def: graph_pb2.GraphDef) -> bool:
    return all(n.device for n in graph_def.node) and len(graphs.devices_of(graph_def)) > 1


def _show_placed(graph_def: graph_pb2.GraphDef, text: bool) -> None:
    if text:
        sys.stdout.write(placed_text(graph_def))
        return
    feeds = [n.name for n in graph_def.node if n.op == "Placeholder" or _FEED.fullmatch(n.name)]
    results = [n.name for n in graph_def.node if _RESULT.fullmatch(n.name)]
    counted = count_communication(graph_def, feeds, results)
    tables.show(
        tables.devices_table(device_shares(graph_def, counted)),
        tables.receivers_table(counted),
        "\n".join(tables.counted_lines(counted)),
    )


def _show_planned(graph_def: graph_pb2.GraphDef, values: Any) -> None:
    found = graphs.planned(graph_def, values, values.plan)
    placed = apply_plan(found.graph, found.plan, describing=found.describing)
    result = exported(placed, found.graph, found.fetches, found.operations)
    if values.text:
        sys.stdout.write(placed_text(result))
        return
    counted = count_communication(result, placed.feed_nodes, placed.result_nodes)
    tables.show(
        "\n".join((*summary_lines(found.plan), *whole_lines(found.plan))),
        tables.devices_table(device_shares(result, counted)),
        tables.kinds_table(moved_by_kind(found.graph, found.plan, found.describing)),
        "\n".join(tables.counted_lines(counted)),
    )
