"""The whole road in functions: a Graph to a Plan, a Plan to a placed graph, a GraphDef to a placed
one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from tofu_tf.capture.graph_defs import capture_graph_def, effectful, split_fetches
from tofu_tf.capture.saved_models import Exported, Program, load_program, persistence_of
from tofu_tf.cost.evaluation import evaluate
from tofu_tf.errors import GraphError
from tofu_tf.graph.files import TEXT_SUFFIXES, write_graph_def
from tofu_tf.graph.ir import Graph
from tofu_tf.graph.saved_models import write_saved_model
from tofu_tf.graph.state import HANDLE_MAKERS
from tofu_tf.ops.applicable import Describing
from tofu_tf.plan.collectives import Choosing
from tofu_tf.plan.constraints import Wish
from tofu_tf.plan.machine import Machine, imagined
from tofu_tf.plan.plans import Plan
from tofu_tf.rewrite.collectives import rewrite_with_collectives
from tofu_tf.rewrite.exporting import exported
from tofu_tf.rewrite.meta_graphs import as_meta_graph
from tofu_tf.rewrite.persisting import Persisted, persisted
from tofu_tf.rewrite.placed import Placed
from tofu_tf.rewrite.rewriting import rewrite
from tofu_tf.search.checking import check_plan
from tofu_tf.search.planning import check_choices, check_known, find_plan

# How a change of layout becomes nodes.
LOWERINGS: dict[str, Callable[[Graph, Plan, Describing | None], Placed]] = {
    "p2p": rewrite,
    "collective": rewrite_with_collectives,
}


def apply_plan(
    graph: Graph, plan: Plan, lowering: str = "p2p", describing: Describing | None = None
) -> Placed:
    """The step over all devices of the plan's machine: one explicit graph with a device on every
    node.

    Args:
      graph: the step that `plan` was made for.
      plan: see `find_plan`.
      lowering: a key of LOWERINGS; "p2p" sends slices from their owners to where they are needed,
        "collective" does so only where no collective op makes just that change of layout.
      describing: descriptions of the graph's nodes, where the caller has them already.

    Raises:
      PlanError: an unknown lowering.
      RewriteError: the plan does not fit the graph.
    """
    check_known("lowering", lowering, LOWERINGS)
    return LOWERINGS[lowering](graph, plan, describing)


def with_bytes(
    graph: Graph, plan: Plan, lowering: str, describing: Describing | None = None
) -> Plan:
    """`plan` whose predicted bytes are what it moves under `lowering`.

    Collectives take in all members of a group, also those whose copy nobody needs.
    """
    choosing = Choosing(plan.machine.device_type) if lowering == "collective" else None
    moved = evaluate(graph, plan, describing, choosing)
    return dataclasses.replace(plan, predicted_bytes=moved)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A placed graph that stands by itself.

    `meta`: for a MetaGraphDef or SavedModel, in what form it is placed; it holds `graph_def`.
    `initialize`: operations that give the variables their first values. `unset`: variables that
    have neither a first value nor an entry in checkpoints.
    """

    program: Program
    graph_def: graph_pb2.GraphDef
    meta: meta_graph_pb2.MetaGraphDef | None
    initialize: tuple[str, ...]
    unset: tuple[str, ...]


def finish(program: Program, graph: Graph, placed: Placed) -> Finished:
    """The placed step with the names of its original's fetches, and what initialises, restores and
    saves its variables.
    """
    nodes = {node.name: node for node in program.graph_def.node}
    tensors, operations = split_fetches(program.fetches, program.targets, nodes)
    waiting = effectful(program.graph_def, tensors)
    graph_def = exported(placed, graph, tensors, operations, waiting)
    if not any(node.op in HANDLE_MAKERS for node in program.graph_def.node):
        state = Persisted(graph_def, (), (), ())
    else:
        state = persisted(graph_def, placed, graph, persistence_of(program))
    meta = None
    if program.meta is not None:
        shapes = {
            tensor: graph.spec(ref).shape
            for tensor, ref in zip(tensors, graph.outputs, strict=True)
            if graph.spec(ref).is_static
        }
        meta = as_meta_graph(state, program.meta, shapes, program.signature)
    return Finished(program, state.graph_def, meta, state.initialize, state.unset)


def write_placed(finished: Finished, output: str | os.PathLike[str]) -> None:
    """Writes a placed graph: a GraphDef to ``.pb`` or ``.pbtxt``, a MetaGraphDef to ``.meta``, and
    to any other path the directory of a SavedModel.

    Raises:
      GraphError: nothing is written when it cannot be, is over 2 GiB, or the original is a bare
        GraphDef, which makes no SavedModel.
    """
    suffix = Path(output).suffix
    if suffix in (".pb", *TEXT_SUFFIXES):
        write_graph_def(finished.graph_def, output)
        return
    if finished.meta is None:
        raise GraphError(
            str(output),
            "a bare GraphDef has no signature, which a SavedModel needs",
            "a name that ends in .pb or .pbtxt",
            "name such a file, or partition a SavedModel",
        )
    if suffix == ".meta":
        write_graph_def(finished.meta, output)
    else:
        write_saved_model(finished.meta, output, finished.program.directory)


def partition(
    graph: Exported,
    *,
    machine: Machine | int,
    fetches: Sequence[str] = (),
    targets: Sequence[str] = (),
    signature: str | None = None,
    batch: int | None = None,
    objective: str = "bytes",
    algorithm: str = "recursion",
    constraints: Mapping[str, Wish] | None = None,
    lowering: str = "p2p",
    undescribed: str = "whole",
    output: str | os.PathLike[str] | None = None,
) -> tuple[graph_pb2.GraphDef | meta_graph_pb2.MetaGraphDef, Plan]:
    """An exported graph rewritten over the devices of `machine`, and the plan that it follows.

    Args:
      graph: a GraphDef, a MetaGraphDef, a SavedModel, or the path of one (``.pb``, ``.pbtxt``,
        ``.meta``, or a SavedModel's directory). Functions in it are inlined, Consts of weights are
        cut.
      machine: a Machine, or a number of logical CPUs.
      fetches: ``node`` or ``node:0`` names, of tensors or of operations; they keep their names, and
        tensors are whole, on the first device. A signature names them itself.
      targets: operations that must run as well.
      signature: of a MetaGraphDef or SavedModel; without `fetches` it is ``serving_default``.
      batch: the size of unknown first dimensions of Placeholders.
      objective: see `find_plan`; also `algorithm` and `constraints`.
      lowering: see `apply_plan`.
      undescribed: run ops that nothing is known of "whole" on the first device, or "refuse" them.
      output: where it is also written, see `write_placed`.

    Returns:
      The placed GraphDef, which stock TensorFlow runs, and its Plan; a MetaGraphDef where the
      original is one or a SavedModel. Placeholders keep their names. A variable ``v`` becomes
      VarHandleOps with the shared names ``v/shard0`` ..., each with its part of the first value
      (the operations that initialise keep their names; where there is none it is ``init``). What
      restores and saves checkpoints keeps its names too, and checkpoints hold whole variables.

    Raises:
      GraphError: names that are not in the graph, ops or edges that TensorFlow does not know, a
        signature that does not exist, a graph that is placed already or calls Python.
      CaptureError: unknown dimensions; with `undescribed` "whole", of Placeholders only.
      UndescribedError: ops without a description, which are refused.
      PlanError: more workers than any tensor can be cut for; a constraint that cannot be.
    """
    target = imagined(machine) if isinstance(machine, int) else machine
    dynamic = undescribed == "whole"
    program = load_program(graph, fetches, targets, signature)
    captured = capture_graph_def(
        program.graph_def, program.fetches, program.targets, batch, dynamic=dynamic
    ).graph
    describing = Describing(captured)
    plan = find_plan(
        captured,
        target,
        objective=objective,
        algorithm=algorithm,
        constraints=constraints,
        describing=describing,
        undescribed=undescribed,
    )
    placed = apply_plan(captured, plan, lowering, describing)
    if lowering == "collective":
        plan = with_bytes(captured, plan, lowering, describing)
    finished = finish(program, captured, placed)
    if output is not None:
        write_placed(finished, output)
    return finished.graph_def if finished.meta is None else finished.meta, plan


__all__ = [
    "LOWERINGS",
    "Finished",
    "apply_plan",
    "check_choices",
    "check_known",
    "check_plan",
    "find_plan",
    "finish",
    "partition",
    "with_bytes",
    "write_placed",
]
