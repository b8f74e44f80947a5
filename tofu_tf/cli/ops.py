"""``tofu-tf ops GRAPH``: which ops of a graph are described; ``--all``: every described op."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tofu_tf.ops  # noqa: F401  fills the registry
from tofu_tf.cli import graphs
from tofu_tf.errors import FlagError
from tofu_tf.report import operators, tables
from tofu_tf.report.coverage import cover


def run(arguments: Sequence[str], values: Any) -> None:
    """Prints tables of the ops of the graph that `arguments` name; or a line of each known op."""
    if not values.all:
        if values.markdown:
            raise FlagError("--markdown", "without --all", "--all --markdown")
        _, graph = graphs.captured(graphs.one_path(arguments, "ops"), values)
        tables.show(*tables.coverage_tables(cover(graph)))
        return
    if arguments:
        raise FlagError(
            "tofu-tf ops --all",
            f"a graph, {arguments[0]}",
            "no graph: --all lists the ops that this package describes",
            f"tofu-tf ops {arguments[0]} lists those of the graph",
        )
    if values.markdown:
        sys.stdout.write(operators.operators_markdown())
        return
    for shown in operators.operators():
        sys.stdout.write(operators.operator_line(shown) + "\n")
