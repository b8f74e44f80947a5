"""One planned step as text: what its plan says, what each device does, what moves."""

from __future__ import annotations

from typing import Protocol

from tofu_tf.capture.captured import Captured
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.plans import Plan
from tofu_tf.plan.text import summary_lines, whole_lines
from tofu_tf.report import tables
from tofu_tf.report.communication import moved_by_kind
from tofu_tf.report.counting import count_communication
from tofu_tf.report.devices import device_shares
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


def describe(step: Planned) -> str:
    """The plan's figures, each device's share, the kinds of communication and what was counted.

    Args:
      step: one of ``model.tofu.steps``, or what a `tofu_tf.function`'s `get_concrete_function`
        returns.
    """
    placed = step.placed
    shown = with_variables(placed, step.captured.graph)
    counted = count_communication(shown, placed.feed_nodes, placed.result_nodes)
    choosing = Choosing(step.plan.machine.device_type) if placed.groups else None
    return tables.text_of(
        "\n".join((*summary_lines(step.plan), *whole_lines(step.plan))),
        tables.devices_table(device_shares(shown, counted)),
        tables.kinds_table(moved_by_kind(step.captured.graph, step.plan, choosing=choosing)),
        "\n".join(tables.counted_lines(counted)),
    )
