"""Imports go only downwards in the table of layers that the root BUILD file holds."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "tofu_tf"
PRIVATE = ("tensorflow.python", "tensorflow.compiler", "tf_keras.src")

# Private modules so small and stable that every module of these layers may use them.
EXEMPT = {"graph": {"tensorflow.python.framework.tensor_util"}}


def layers() -> dict[str, list[str]]:
    """The table LAYERS of the root BUILD file."""
    for statement in ast.parse((ROOT / "BUILD").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "LAYERS":
            return ast.literal_eval(statement.value)
    raise AssertionError("BUILD has no table LAYERS")


LAYERS = layers()
FILES = sorted((ROOT / PACKAGE).rglob("*.py"))


def module_of(path: Path) -> tuple[str, ...]:
    """``(tofu_tf, plan, layouts)``; a package's own file ends in ``__init__``."""
    return path.relative_to(ROOT).with_suffix("").parts


def layer_of(module: tuple[str, ...]) -> str:
    """The layer of a module given by its parts; the facade is a layer of the package's name."""
    return module[1] if len(module) > 1 and module[1] != "__init__" else PACKAGE


def imported(source: str, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported anywhere in `source`, lazily too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(module[: len(module) - node.level]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield node.lineno, str(argument.value)


def wrong_imports(source: str, module: tuple[str, ...]) -> list[str]:
    """Every import of another layer that the table does not allow, as ``line: name``."""
    allowed = {*LAYERS[layer_of(module)], layer_of(module)}
    wrong = []
    for line, name in imported(source, module):
        parts = tuple(name.split("."))
        if parts[0] != PACKAGE:
            continue
        layer = parts[1] if len(parts) > 1 and parts[1] in LAYERS else PACKAGE
        if layer not in allowed:
            wrong.append(f"{line}: {name}")
    return wrong


def test_the_table_is_in_order() -> None:
    seen: set[str] = set()
    for layer, below in LAYERS.items():
        assert set(below) <= seen, f"{layer} may import {set(below) - seen}, which are not below it"
        seen.add(layer)


def test_every_file_has_a_layer() -> None:
    assert {layer_of(module_of(path)) for path in FILES} <= set(LAYERS)


@pytest.mark.parametrize(
    "module, source, wrong",
    [
        ("tofu_tf.tdl.regions", "from tofu_tf import errors", []),
        ("tofu_tf.errors", "from tofu_tf import tdl", ["1: tofu_tf.tdl"]),
        ("tofu_tf.errors", "import tofu_tf", ["1: tofu_tf"]),
        ("tofu_tf.plan.layouts", "from . import plans", []),
        ("tofu_tf.plan.layouts", "from ..cost import memory", ["1: tofu_tf.cost.memory"]),
        ("tofu_tf.plan.__init__", "from ..cost import memory", ["1: tofu_tf.cost.memory"]),
        ("tofu_tf.plan.layouts", "def f():\n  import tofu_tf.cli.main", ["2: tofu_tf.cli.main"]),
        ("tofu_tf.plan.layouts", "importlib.import_module('tofu_tf.cli')", ["1: tofu_tf.cli"]),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(source, tuple(module.split("."))) == wrong


def test_imports_go_downwards() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{found}"
        for path in FILES
        for found in wrong_imports(path.read_text(), module_of(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_description_language_has_no_tensorflow() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        if layer_of(module_of(path)) in ("errors", "tdl")
        for line, name in imported(path.read_text(), module_of(path))
        if name.split(".")[0] in ("tensorflow", "tf_keras", "keras")
    ]
    assert not wrong, "\n".join(wrong)


def test_counting_knows_neither_plans_nor_costs() -> None:
    """The counter judges predictions, so it may share nothing with what predicts."""
    path = ROOT / PACKAGE / "report" / "counting.py"
    names = [name for _, name in imported(path.read_text(), module_of(path))]
    ours = {name for name in names if name.startswith(PACKAGE)}
    assert ours <= {f"{PACKAGE}.errors"}


def test_private_api_is_imported_in_one_module_per_layer() -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        layer = layer_of(module_of(path))
        for _, name in imported(path.read_text(), module_of(path)):
            exempt = any(name.startswith(free) for free in EXEMPT.get(layer, ()))
            if name.startswith(PRIVATE) and not exempt:
                users[layer].add(str(path.relative_to(ROOT)))
    assert {layer: files for layer, files in users.items() if len(files) > 1} == {}
