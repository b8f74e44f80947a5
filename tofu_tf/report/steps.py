"""One planned step as text: what its plan says, what each device does, what moves."""

from __future__ import annotations

import os
from typing import Protocol

from tofu_tf.capture.captured import Captured
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.text import summary_lines, whole_lines
from tofu_tf.report import tables
from tofu_tf.report.communication import moved_by_kind
from tofu_tf.report.counting import count_communication
from tofu_tf.report.devices import device_shares
from tofu_tf.report.drawings import write_dot, write_tensorboard
from tofu_tf.report.pictures import tensor_picture
from tofu_tf.report.pieces import op_picture
from tofu_tf.rewrite.exporting import with_variables
from tofu_tf.rewrite.placed import Placed


class Planned(Protocol):
    """A step of a distributed model, or a concrete function."""

    @property
    def captured(self) -> Captured: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def placed(self) -> Placed: ...
    @property
    def lowering(self) -> str: ...


def describe(step: Planned, *, op: str | None = None, tensor: str | None = None) -> str:
    """The plan's figures, each device's share, the kinds of communication and what was counted.

    Args:
      step: one of ``model.tofu.steps``, or what a `tofu_tf.function`'s `get_concrete_function`
        returns.
      op: a node of the step, of which the pieces are described instead: what each device reads from
        whom and makes.
      tensor: a variable or tensor, of which the layout is drawn instead; both of them one after the
        other.

    Raises:
      PlanError: the step has no such op or tensor.
    """
    graph, placed = step.captured.graph, step.placed
    together = step.lowering == "collective"
    choosing = Choosing(step.plan.machine.device_type) if together else None
    if op is not None or tensor is not None:
        texts = [] if tensor is None else [tensor_picture(graph, step.plan, tensor)]
        if op is not None:
            texts.append(op_picture(graph, step.plan, op, choosing=choosing))
        return "\n\n".join(texts) + "\n"
    shown = with_variables(placed, graph)
    counted = count_communication(shown, placed.feed_nodes, placed.result_nodes)
    return tables.text_of(
        "\n".join((*summary_lines(step.plan), *whole_lines(step.plan))),
        tables.devices_table(device_shares(shown, counted)),
        tables.kinds_table(moved_by_kind(graph, step.plan, choosing=choosing), together),
        "\n".join(tables.counted_lines(counted)),
    )


def draw(
    step: Planned,
    *,
    dot: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a step's placed graph for programs that draw it, every device in a colour.

    Args:
      step: see `describe`.
      dot: a file for Graphviz: ``dot -Tsvg FILE``. Large graphs are drawn by groups of nodes.
      tensorboard: a directory for ``tensorboard --logdir``, whose graph tab colours by device.
    """
    shown = with_variables(step.placed, step.captured.graph)
    if dot is not None:
        write_dot(shown, dot, step.placed.feed_nodes, step.placed.result_nodes)
    if tensorboard is not None:
        write_tensorboard(shown, tensorboard)
