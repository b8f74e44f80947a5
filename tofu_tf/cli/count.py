"""``tofu-tf count GRAPH``: the bytes that a placed graph moves between its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tofu_tf.cli import graphs
from tofu_tf.graph.persistence import step_of
from tofu_tf.report import tables
from tofu_tf.report.counting import count_communication, edge_nodes


def run(arguments: Sequence[str], values: Any) -> None:
    """Prints what is counted in the graph that `arguments` name, whoever placed it."""
    graph_def = graphs.read(graphs.one_path(arguments, "count"))
    devices = graphs.devices_of(graph_def)
    if not devices or (len(devices) == 1 and all(n.device for n in graph_def.node)):
        where = f"all nodes are on {devices[0]}" if devices else "no node names a device"
        tables.show(
            f"counted communication: 0 B per step, as {where}\n"
            "tofu-tf plan or show places a graph on several devices"
        )
        return
    graph_def = step_of(graph_def)
    counted = count_communication(graph_def, *edge_nodes(graph_def))
    tables.show(
        tables.pairs_table(counted),
        tables.receivers_table(counted),
        "\n".join(tables.counted_lines(counted)),
    )
