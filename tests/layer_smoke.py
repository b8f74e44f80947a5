"""Imports every module of one layer: Bazel runs it where only that layer and those below exist."""

from __future__ import annotations

import importlib
import pkgutil
import sys


def modules(layer: str) -> list[str]:
    """The full names of the modules of `layer`."""
    if layer == "tofu_tf":
        return [layer]
    top = importlib.import_module(f"tofu_tf.{layer}")
    below = pkgutil.walk_packages(getattr(top, "__path__", ()), f"{top.__name__}.")
    return [top.__name__, *(module.name for module in below)]


if __name__ == "__main__":
    for name in modules(sys.argv[1]):
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            getattr(module, public)  # the facade imports on first use
        print(name)
