"""@rules_cc for Debian's Bazel 4.2.3: the built-in rules. Debian's own copy is too new for it."""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
