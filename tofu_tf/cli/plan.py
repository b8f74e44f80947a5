"""``tofu-tf plan GRAPH``: searches a plan, prints it, writes it to a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tofu_tf.cli import graphs
from tofu_tf.errors import FlagError
from tofu_tf.pipeline import with_bytes
from tofu_tf.plan.files import save_plan
from tofu_tf.report import tables


def run(arguments: Sequence[str], values: Any) -> None:
    """Prints the plan of the graph that `arguments` name; with --output also saves it."""
    found = graphs.planned(graphs.one_path(arguments, "plan"), values)
    plan = found.plan
    if values.lowering == "collective":
        plan = with_bytes(found.graph, plan, values.lowering, found.describing)
    if values.output:
        try:
            save_plan(plan, values.output)
        except OSError as error:
            seen = error.strerror or str(error)
            raise FlagError(f"--output={values.output}", seen, "a file to write") from error
    rows = None if values.rows < 0 else values.rows
    tables.show(tables.plan_table(plan, rows))
    if values.output:
        tables.show(f"written to {values.output}")
