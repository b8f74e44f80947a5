"""Operators: importing this package fills the registry with every family's descriptions."""

import importlib
import pkgutil

# Every module here is a family of ops, or what families share: a new file needs no entry.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
