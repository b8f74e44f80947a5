"""SavedModels to directories: a MetaGraphDef and the checkpoint that its variables start from."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tofu_tf.errors import GraphError
from tofu_tf.graph.files import LIMIT

_PARTS = ("variables", "assets", "assets.extra")  # what goes along unchanged
SCHEMA_VERSION = 1


def write_saved_model(
    meta: meta_graph_pb2.MetaGraphDef,
    path: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a SavedModel with one graph, whole or not at all.

    `source`: the directory of the SavedModel whose checkpoint and assets it keeps.

    Raises:
      GraphError: there is something at `path` already, it cannot be written, or the graph is over
        2 GiB.
    """
    directory = Path(path)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise GraphError(
            str(path), "it exists already", "a new directory", "name another, or remove it"
        )
    held = saved_model_pb2.SavedModel(saved_model_schema_version=SCHEMA_VERSION)
    held.meta_graphs.append(meta)
    size = held.ByteSize()
    if size > LIMIT:
        raise GraphError(
            str(path),
            f"a SavedModel with a graph of {size} bytes",
            f"at most {LIMIT} bytes, what a protocol buffer can hold",
            "keep the weights as variables instead of constants",
        )
    temporary = ""
    try:
        temporary = tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}.")
        for part in _PARTS if source is not None else ():
            if (Path(source or "") / part).is_dir():
                shutil.copytree(Path(source or "") / part, Path(temporary) / part)
        data = held.SerializeToString(deterministic=True)
        (Path(temporary) / "saved_model.pb").write_bytes(data)
        os.chmod(temporary, 0o755)
        os.replace(temporary, directory)
    except OSError as error:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        seen = error.strerror or str(error)
        raise GraphError(str(path), seen, "a directory that can be written") from error
