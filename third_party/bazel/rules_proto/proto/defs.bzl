"""The protocol buffer rules by the names that @rules_proto gives them: Bazel's native ones."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
