"""Stands in for rules_proto: the rules that are built in."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
