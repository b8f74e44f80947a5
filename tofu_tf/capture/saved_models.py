"""An exported graph in any of its forms -> Program: what to compute, and where values come from.

A GraphDef, a MetaGraphDef or a SavedModel; given as an object or as the path of a file or
directory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tofu_tf.capture.inlining import inline
from tofu_tf.errors import GraphError
from tofu_tf.graph.files import read_exported
from tofu_tf.graph.persistence import Persistence, ancestors, find_persistence, parsed

Exported: TypeAlias = (
    str
    | os.PathLike[str]
    | graph_pb2.GraphDef
    | meta_graph_pb2.MetaGraphDef
    | saved_model_pb2.SavedModel
)

DEFAULT_SIGNATURE = "serving_default"
_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Program:
    """An exported graph and what is asked of it.

    `fetches`: names of tensors and operations; `targets`: operations. `meta`: the MetaGraphDef that
    holds the graph, None for a bare one. `signature`: the one that names the fetches, "" if none
    does. `directory`: of the SavedModel, None where it is none.
    """

    graph_def: graph_pb2.GraphDef
    fetches: tuple[str, ...]
    targets: tuple[str, ...]
    meta: meta_graph_pb2.MetaGraphDef | None = None
    signature: str = ""
    directory: Path | None = None


def load_program(
    exported: Exported,
    fetches: Sequence[str] = (),
    targets: Sequence[str] = (),
    signature: str | None = None,
) -> Program:
    """What `exported` computes.

    Args:
      exported: a GraphDef, MetaGraphDef or SavedModel, or the path of one.
      fetches: names of tensors or operations. Without them, and without `targets`, they are the
        outputs of the signature; a MetaGraphDef without signatures says them by its collections
        ``losses`` (fetches) and ``train_op`` (targets).
      targets: operations that must run as well.
      signature: of a MetaGraphDef or SavedModel; by default ``serving_default``.

    Raises:
      GraphError: no such signature (those that exist are listed); a file that holds no graph.
    """
    directory: Path | None = None
    if isinstance(exported, str | os.PathLike):
        held, where = read_exported(exported), str(exported)
        if isinstance(held, saved_model_pb2.SavedModel):
            path = Path(exported)
            directory = path if path.is_dir() else path.parent
    else:
        held, where = exported, type(exported).__name__
    if isinstance(held, graph_pb2.GraphDef):
        if signature is not None:
            raise GraphError(
                where,
                f"signature {signature!r} of a bare GraphDef, which has none",
                "a SavedModel or a MetaGraphDef",
                "name what it computes: fetches (--fetches)",
            )
        return Program(held, tuple(fetches), tuple(targets))
    metas = [held] if isinstance(held, meta_graph_pb2.MetaGraphDef) else list(held.meta_graphs)
    asked = signature if signature is not None or fetches or targets else DEFAULT_SIGNATURE
    meta = _with_signature(metas, asked, where, optional=signature is None)
    if asked is not None and asked in meta.signature_def:
        outputs = [info.name for _, info in sorted(meta.signature_def[asked].outputs.items())]
        fetches = tuple(dict.fromkeys((*outputs, *fetches)))
    elif not fetches and not targets:
        fetches, targets = _collected(meta)
        if not fetches and not targets:
            raise _no_signature([meta], asked, where)
    name = asked if asked is not None and asked in meta.signature_def else ""
    return Program(meta.graph_def, tuple(fetches), tuple(targets), meta, name, directory)


def _with_signature(
    metas: Sequence[meta_graph_pb2.MetaGraphDef],
    signature: str | None,
    where: str,
    optional: bool,
) -> meta_graph_pb2.MetaGraphDef:
    """The graph that has the signature, the one for serving first."""
    if not metas:
        raise GraphError(where, "a SavedModel without graphs", "at least one", "export it again")
    ordered = sorted(metas, key=lambda m: "serve" not in m.meta_info_def.tags)
    if signature is None:
        return ordered[0]
    found = next((m for m in ordered if signature in m.signature_def), None)
    if found is None and optional and not _signatures(metas):
        return ordered[0]
    if found is None:
        raise _no_signature(metas, signature, where)
    return found


def _signatures(metas: Sequence[meta_graph_pb2.MetaGraphDef]) -> list[str]:
    return sorted({s for m in metas for s in m.signature_def if not s.startswith("__")})


def _no_signature(
    metas: Sequence[meta_graph_pb2.MetaGraphDef], signature: str | None, where: str
) -> GraphError:
    known = _signatures(metas)
    return GraphError(
        where,
        f"no signature {signature or DEFAULT_SIGNATURE!r}",
        f"one of {', '.join(map(repr, known))}" if known else "a graph with signatures",
        "choose one with signature (--signature)"
        if known
        else "it has none: name what it computes with fetches (--fetches)",
    )


def _collected(
    meta: meta_graph_pb2.MetaGraphDef,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fetches and targets that the graph's collections name."""
    held = meta.collection_def
    losses = held["losses"].node_list.value if "losses" in held else ()
    training = held["train_op"].node_list.value if "train_op" in held else ()
    return tuple(losses), tuple(training)


def persistence_of(program: Program) -> Persistence:
    """How the program's variables are initialised, restored and saved."""
    flat = inline(*_with_saving(program))
    nodes = {node.name: node for node in flat.node}
    step = ancestors(nodes, (f"{_STEP}/{i}" for i in range(_roots(program))))
    saver_def = program.meta.saver_def if program.meta is not None else None
    has_saver = saver_def is not None and bool(saver_def.restore_op_name)
    return find_persistence(flat, step, saver_def if has_saver else None)


_STEP = "tofu_step"


def _roots(program: Program) -> int:
    return len(program.fetches) + len(program.targets)


def _with_saving(program: Program) -> tuple[graph_pb2.GraphDef, list[str]]:
    """The graph with operations that wait for the fetches and for what saves and restores, and what
    inlining must keep of it: calls that are kept are not inlined.
    """
    graph = graph_pb2.GraphDef()
    graph.CopyFrom(program.graph_def)
    for i, text in enumerate((*program.fetches, *program.targets)):
        graph.node.add(name=f"{_STEP}/{i}", op="NoOp", input=[f"^{parsed(text).node}"])
    present = {node.name for node in graph.node}
    waits = [f"{_STEP}/{i}" for i in range(_roots(program))]
    if program.meta is not None:
        saver = program.meta.saver_def
        names = (saver.save_tensor_name, saver.restore_op_name)
        for name in filter(None, names):
            node = parsed(name).node
            if node in present:
                made = f"{_STEP}/saver{len(waits)}"
                graph.node.add(name=made, op="NoOp", input=[f"^{node}"])
                waits.append(made)
        filename = parsed(saver.filename_tensor_name).node
        if filename in present:
            waits.append(filename)
    return graph, waits


__all__ = ["DEFAULT_SIGNATURE", "Exported", "Program", "load_program", "persistence_of"]
