"""A Graph as text: one node a line, the same text for the same graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from tofu_tf.graph.attributes import decode, digest, matters
from tofu_tf.graph.ir import Graph, Node, TensorSpec

_SHORT = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
} | {
    f"{sign}int{bits}": f"{sign[:1] or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

_SHOWN_ELEMENTS = 8


def spec_text(spec: TensorSpec) -> str:
    """``f32[8, 4]``; ``?`` for an unknown dimension."""
    dims = ", ".join("?" if d < 0 else str(d) for d in spec.shape)
    return f"{_SHORT.get(spec.dtype, spec.dtype)}[{dims}]"


def node_text(node: Node) -> str:
    """``name = Op(inputs) {attrs} ^controls -> outputs``; a written version has its name."""
    inputs = ", ".join(str(r) for r in node.inputs)
    attrs = ", ".join(
        f"{name}={value_text(decode(attr))}"
        for name, attr in sorted(node.attrs.items())
        if matters(node.op, name, attr)
    )
    own = len(node.outputs) - len(node.writes)
    outputs = [spec_text(s) for s in node.outputs[:own]]
    outputs += [
        f"{w}: {spec_text(s)}" for w, s in zip(node.writes, node.outputs[own:], strict=True)
    ]
    line = f"{node.name} = {node.op}({inputs})"
    if attrs:
        line += f" {{{attrs}}}"
    if node.controls:
        line += " " + " ".join(f"^{c}" for c in node.controls)
    return f"{line} -> {', '.join(outputs)}" if outputs else line


def value_text(value: Any) -> str:
    """A decoded attribute, a large tensor as shape and digest."""
    if isinstance(value, np.ndarray):
        if value.size > _SHOWN_ELEMENTS:
            return f"<{value.dtype.name}{list(value.shape)} {digest(value)[:8]}>"
        return str(value.tolist())
    if isinstance(value, tuple):
        return "(" + ", ".join(value_text(v) for v in value) + ")"
    return str(value)


def graph_text(graph: Graph) -> str:
    """The listing of `graph`: inputs, variables, nodes in order, outputs, effects."""
    lines = [f"inputs: {', '.join(graph.inputs)}"]
    lines += [
        f"variable {v.name}: {spec_text(v.spec)} at {v.node}" for v in graph.variables.values()
    ]
    lines += [node_text(node) for node in graph]
    lines += [
        f"outputs: {', '.join(map(str, graph.outputs))}",
        f"effects: {', '.join(graph.effects)}",
    ]
    return "\n".join(lines) + "\n"


def counts_text(graph: Graph) -> str:
    """How many nodes of each op, most frequent first, one op a line."""
    counts: dict[str, int] = {}
    for node in graph:
        counts[node.op] = counts.get(node.op, 0) + 1
    rows = sorted(counts.items(), key=lambda c: (-c[1], c[0]))
    return "\n".join(f"{n:6d} {op}" for op, n in rows)
