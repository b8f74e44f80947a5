"""``tofu-tf rewrite GRAPH``: writes the graph placed on the devices, for stock TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2

from tofu_tf.cli import graphs
from tofu_tf.errors import FlagError, RewriteError
from tofu_tf.graph.persistence import step_of
from tofu_tf.pipeline import Finished, apply_plan, finish, with_bytes, write_placed
from tofu_tf.plan.text import summary_lines, whole_lines
from tofu_tf.report import tables
from tofu_tf.report.checking import check_placement
from tofu_tf.report.counting import count_communication
from tofu_tf.report.devices import device_shares

_SHOWN = 5


def run(arguments: Sequence[str], values: Any) -> None:
    """Writes the graph that `arguments` name as the plan says, and prints what each device does."""
    path = graphs.one_path(arguments, "rewrite")
    if not values.output:
        raise FlagError(
            "tofu-tf rewrite",
            "no --output",
            "where to write the placed graph",
            "add --output=placed.pb, or a new directory for a SavedModel",
        )
    found = graphs.planned(path, values, values.plan)
    graph, plan = found.graph, found.plan
    if values.lowering == "collective":
        plan = with_bytes(graph, plan, values.lowering, found.describing)
    placed = apply_plan(graph, plan, values.lowering, found.describing)
    finished = finish(found.program, graph, placed)
    _check(finished.graph_def)
    step = step_of(finished.graph_def)
    counted = count_communication(step, placed.feed_nodes, placed.result_nodes)
    write_placed(finished, values.output)
    tables.show(
        "\n".join((*summary_lines(plan), *whole_lines(plan))),
        tables.devices_table(device_shares(step, counted)),
        "\n".join((*tables.counted_lines(counted), *_state_lines(finished))),
        f"written to {values.output}",
    )


def _check(graph_def: graph_pb2.GraphDef) -> None:
    """Raises RewriteError where a node cannot run on its device."""
    problems = check_placement(graph_def)
    if problems:
        shown = [str(p) for p in problems[:_SHOWN]]
        raise RewriteError(
            "graph",
            "\n  ".join((f"{len(problems)} nodes cannot run where they are placed:", *shown)),
            "a kernel for each op and data type on its device, and variables where they are used",
            "plan for CPUs (--device_type=CPU), or keep what has no kernel out of the graph",
        )


def _state_lines(finished: Finished) -> list[str]:
    """How the variables get their values."""
    lines = []
    if finished.initialize:
        lines.append(f"variables are initialised by {', '.join(finished.initialize)}")
    if finished.meta is not None and finished.meta.saver_def.restore_op_name:
        lines.append(f"variables are restored by {finished.meta.saver_def.restore_op_name}")
    if finished.unset:
        lines.append(f"nothing gives these variables a value: {', '.join(finished.unset)}")
    return lines
