"""GraphDefs from and to files: binary (``.pb``) or text (``.pbtxt``)."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tofu_tf.errors import GraphError

TEXT_SUFFIXES = (".pbtxt", ".txt", ".prototxt")
SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")  # files of a SavedModel's directory
LIMIT = 2**31 - 1  # bytes of a protocol buffer

# Tags of a GraphDef's fields (nodes, library, version, versions, debug information) and of a
# SavedModel's first, its version.
_NUMBERS = (0x08, 0x18)
_FIELDS = (0x0A, 0x12, 0x22, 0x2A, *_NUMBERS)
_EXPECTED = "a GraphDef: binary (.pb) or text (.pbtxt)"
_WRITING = "write one with tf.io.write_graph(graph, directory, 'graph.pb', as_text=False)"


def read_graph_def(path: str | os.PathLike[str]) -> graph_pb2.GraphDef:
    """The GraphDef in a file.

    Raises:
      GraphError: the file is missing, empty, truncated, over 2 GiB, or holds something else.
    """
    file = Path(path)
    if file.is_dir():
        saved = any((file / name).exists() for name in SAVED_MODEL)
        seen = "the directory of a SavedModel" if saved else "a directory"
        raise GraphError(str(path), seen, _EXPECTED, f"name a file; {_WRITING}")
    data = _read(file)
    if file.suffix in TEXT_SUFFIXES:
        return _checked(_of_text(data, path), data, path)
    return _checked(_of_bytes(data, path), data, path)


def read_exported(
    path: str | os.PathLike[str],
) -> graph_pb2.GraphDef | meta_graph_pb2.MetaGraphDef | saved_model_pb2.SavedModel:
    """The GraphDef or MetaGraphDef in a file, or the SavedModel of a directory or its file.

    Raises:
      GraphError: as `read_graph_def`; a directory that holds no SavedModel.
    """
    file = Path(path)
    if file.is_dir():
        found = next((file / name for name in SAVED_MODEL if (file / name).exists()), None)
        if found is None:
            raise GraphError(
                str(path),
                "a directory without saved_model.pb",
                "the directory of a SavedModel, or a file with a graph",
                "write one with tf.saved_model.save(model, directory)",
            )
        file = found
    try:
        return read_graph_def(file)
    except GraphError:
        if not file.exists() or not 0 < file.stat().st_size <= LIMIT:
            raise
        data = file.read_bytes()
        for kind in (saved_model_pb2.SavedModel, meta_graph_pb2.MetaGraphDef):
            held = _parsed_as(kind(), data, file.suffix in TEXT_SUFFIXES)
            if held is not None and _holds_graph(held):
                return held
        raise


def _read(file: Path) -> bytes:
    """The bytes of a file that may hold a protocol buffer."""
    path = file
    try:
        size = file.stat().st_size
        if size > LIMIT:
            raise GraphError(
                str(path),
                f"{size} bytes, more than a protocol buffer can hold",
                f"at most {LIMIT} bytes",
                "keep the weights as variables instead of constants",
            )
        data = file.read_bytes()
    except OSError as error:
        raise GraphError(str(path), error.strerror or str(error), "a readable file") from error
    if not data:
        raise GraphError(str(path), "an empty file", _EXPECTED, _WRITING)
    return data


def write_graph_def(graph_def: Message, path: str | os.PathLike[str]) -> None:
    """Writes `graph_def` (or another message), as text where `path` ends like text; whole or not at
    all.
    """
    file = Path(path)
    if file.suffix in TEXT_SUFFIXES:
        data = text_format.MessageToString(graph_def).encode()
    else:
        size = graph_def.ByteSize()
        if size > LIMIT:
            raise GraphError(
                str(path),
                f"a graph of {size} bytes",
                f"at most {LIMIT} bytes, what a protocol buffer can hold",
                "keep the weights as variables instead of constants",
            )
        data = graph_def.SerializeToString(deterministic=True)
    write_whole(data, file)


def write_whole(data: bytes, path: str | os.PathLike[str]) -> None:
    """Writes a file so that there is the whole of it or nothing new."""
    file = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        seen = error.strerror or str(error)
        raise GraphError(str(path), seen, "a directory that can be written to") from error
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except OSError as error:
        os.unlink(temporary)
        raise GraphError(str(path), error.strerror or str(error), "a file to write") from error


def _of_text(data: bytes, path: str | os.PathLike[str]) -> graph_pb2.GraphDef:
    try:
        return text_format.Parse(data.decode(), graph_pb2.GraphDef())
    except UnicodeDecodeError as error:
        remedy = "call a binary file .pb"
        raise GraphError(str(path), "binary data in a text file", _EXPECTED, remedy) from error
    except text_format.ParseError as error:
        message = str(error).splitlines()[0]
        end = re.match(r"(\d+):", message)
        lines = data.count(b"\n") + 1
        if end and int(end[1]) >= lines:
            seen = f"text that ends too early ({message}): truncated?"
        else:
            seen = f"text that is no GraphDef ({message})"
        raise GraphError(str(path), seen, _EXPECTED, _WRITING) from error


def _of_bytes(data: bytes, path: str | os.PathLike[str]) -> graph_pb2.GraphDef:
    try:
        return graph_pb2.GraphDef.FromString(data)
    except DecodeError as error:
        other = _other(data)
        missing = _missing_bytes(data)
        if other:
            raise GraphError(str(path), other, _EXPECTED, _WRITING) from error
        if missing:
            seen = f"a file of {len(data)} bytes that lacks {missing} more: truncated"
            raise GraphError(str(path), seen, _EXPECTED, "copy or write it again") from error
        if _is_text(data):
            try:
                return _of_text(data, path)
            except GraphError:
                pass
        raise GraphError(str(path), "bytes that are no GraphDef", _EXPECTED, _WRITING) from error


def _checked(
    graph_def: graph_pb2.GraphDef, data: bytes, path: str | os.PathLike[str]
) -> graph_pb2.GraphDef:
    """Refuses what only happens to parse."""
    if not graph_def.node or any(not n.name or not n.op for n in graph_def.node):
        seen = _other(data) or ("no nodes" if not graph_def.node else "nodes without a name or op")
        raise GraphError(str(path), seen, _EXPECTED, _WRITING)
    return graph_def


def _other(data: bytes) -> str:
    """What else the bytes are, "" if nothing known."""
    saved = _parsed_as(saved_model_pb2.SavedModel(), data)
    if saved is not None and _holds_graph(saved):
        return "a SavedModel"
    meta = _parsed_as(meta_graph_pb2.MetaGraphDef(), data)
    if meta is not None and _holds_graph(meta):
        return "a MetaGraphDef"
    return ""


_M = TypeVar("_M", bound=Message)


def _parsed_as(message: _M, data: bytes, text: bool = False) -> _M | None:
    try:
        if text:
            text_format.Parse(data.decode(), message)
        else:
            message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, text_format.ParseError):
        return None
    return message


def _holds_graph(message: saved_model_pb2.SavedModel | meta_graph_pb2.MetaGraphDef) -> bool:
    metas = getattr(message, "meta_graphs", [message])
    return any(_is_graph(meta.graph_def) for meta in metas)


def _is_graph(graph_def: graph_pb2.GraphDef) -> bool:
    return bool(graph_def.node) and all(n.name and n.op for n in graph_def.node)


def _is_text(data: bytes) -> bool:
    return b"\0" not in data and data.lstrip()[:1].isalpha()


def _missing_bytes(data: bytes) -> int:
    """How many bytes the last field of a GraphDef lacks; 0 for whole fields, or none of its."""
    at = 0
    while at < len(data):
        tag = data[at]
        if tag not in _FIELDS:
            return 0
        length, at = _varint(data, at + 1)
        if length is None:
            return 1
        if tag not in _NUMBERS:
            at += length
    return at - len(data)


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
    return None, at
