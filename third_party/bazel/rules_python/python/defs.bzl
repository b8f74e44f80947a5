"""The Python rules by the names that @rules_python gives them: Bazel's native ones."""

py_binary = native.py_binary
py_library = native.py_library
py_test = native.py_test
