"""The graph that a command is about: read from a file, captured, placed or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tofu_tf.capture.graph_defs import capture_graph_def, split_fetches
from tofu_tf.capture.refusing import devices_of, refuse
from tofu_tf.capture.saved_models import Program, load_program
from tofu_tf.cli.flags import parse_constraints, parse_factors
from tofu_tf.errors import FlagError, GraphError
from tofu_tf.graph.files import read_exported
from tofu_tf.graph.ir import Graph
from tofu_tf.ops.applicable import Describing
from tofu_tf.pipeline import check_plan, find_plan
from tofu_tf.plan.files import load_plan
from tofu_tf.plan.machine import Link, Machine, imagined
from tofu_tf.plan.plans import Plan, with_specs

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Planned:
    """A captured graph with its plan; `fetches` name the graph's outputs in order."""

    program: Program
    graph: Graph
    plan: Plan
    fetches: tuple[str, ...]
    operations: tuple[str, ...]
    describing: Describing


def one_path(arguments: Sequence[str], command: str) -> str:
    """The command's only argument, the path of a graph."""
    if len(arguments) != 1:
        seen = f"{len(arguments)} arguments" if arguments else "no graph"
        raise FlagError(
            f"tofu-tf {command}",
            seen,
            "one GraphDef file (.pb or .pbtxt), MetaGraphDef (.meta) or directory of a SavedModel",
            f"tofu-tf {command} graph.pb --fetches=loss",
        )
    return arguments[0]


def read(path: str) -> graph_pb2.GraphDef:
    """The graph at `path`: a GraphDef, or the first one of a MetaGraphDef or SavedModel."""
    held = read_exported(path)
    if isinstance(held, saved_model_pb2.SavedModel):
        held = held.meta_graphs[0]
    return held.graph_def if isinstance(held, meta_graph_pb2.MetaGraphDef) else held


def captured(path: str, values: Any) -> tuple[Program, Graph]:
    """The graph at `path`, and the part of it that the flags ask for, captured.

    Raises:
      TofuError: whatever is wrong with graph or flags.
    """
    program = load_program(path, values.fetches, values.targets, values.signature or None)
    graph_def = program.graph_def
    if not program.fetches and not program.targets:
        refuse(graph_def)
        program = dataclasses.replace(program, fetches=default_fetches(graph_def))
    dynamic = values.undescribed == "whole"
    found = capture_graph_def(
        graph_def, program.fetches, program.targets, values.batch, dynamic=dynamic
    )
    return program, found.graph


def planned(path: str, values: Any, plan_file: str = "") -> Planned:
    """The graph at `path` captured and planned as the flags say, or under the plan in a file.

    Raises:
      TofuError: whatever is wrong with graph, flags or plan.
    """
    constraints = parse_constraints(values.constraints)
    machine = machine_from_flags(values)
    program, graph = captured(path, values)
    nodes = {node.name: node for node in program.graph_def.node}
    tensors, operations = split_fetches(program.fetches, program.targets, nodes)
    describing = Describing(graph)
    if plan_file:
        plan = with_specs(load_plan(plan_file), graph)
        asked = values["devices"].present or values["factors"].present
        check_plan(plan, graph, machine if asked else plan.machine, describing)
    else:
        plan = find_plan(
            graph,
            machine,
            objective=values.objective,
            algorithm=values.algorithm,
            constraints=constraints,
            describing=describing,
            undescribed=values.undescribed,
        )
    return Planned(program, graph, plan, tuple(tensors), tuple(operations), describing)


def machine_from_flags(values: Any) -> Machine:
    """The made-up machine of --devices, --device_type and --factors."""
    machine = imagined(values.devices, values.device_type)
    factors = parse_factors(values.factors, values.devices)
    if factors is None:
        return machine
    return dataclasses.replace(machine, factors=factors, links=(Link(),) * len(factors))


def default_fetches(graph_def: graph_pb2.GraphDef) -> tuple[str, ...]:
    """The nodes that no other reads, in a graph without variables.

    Raises:
      GraphError: a graph with variables, whose last nodes also initialise, save and restore them.
    """
    read_nodes = {
        text.removeprefix("^").partition(":")[0] for n in graph_def.node for text in n.input
    }
    last = [
        n.name
        for n in graph_def.node
        if n.name not in read_nodes and n.op not in ("Const", "Placeholder", "NoOp")
    ]
    if not last or any(n.op in ("VarHandleOp", "VariableV2") for n in graph_def.node):
        shown = ", ".join(last[-_SHOWN:])
        raise GraphError(
            "graph",
            "it has variables, and nothing says what is to be computed",
            "names of tensors or operations",
            f"add --fetches=..., some of its last nodes: {shown}" if shown else "add --fetches=...",
        )
    return tuple(last)


__all__ = [
    "Planned",
    "captured",
    "default_fetches",
    "devices_of",
    "machine_from_flags",
    "one_path",
    "planned",
    "read",
]
