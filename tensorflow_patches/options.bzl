"""Compiler and linker options for all of our C++."""

# The language and ABI of TensorFlow's own libraries. No -march, because a wheel runs on any x86-64.
COPTS = [
    "-std=c++17",
    # Reductions are loops that must be vectorized, which GCC's -O2 rarely does.
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-Wall",
    "-Wextra",
    "-Werror",
]

# For the wheel's shared libraries: every symbol must be defined in the linked libraries, and
# only the library's own RUNPATH says where these are loaded from.
SHARED_LINKOPTS = [
    "-fuse-ld=bfd",
    "-Wl,-z,defs",
    "-Wl,--enable-new-dtags",
    "-pthread",
]
