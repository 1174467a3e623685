"""Compiler and linker options that all of our own C++ is built with."""

# The same language and ABI as TensorFlow's own libraries. No -march: a wheel runs on any x86-64.
COPTS = [
    "-std=c++17",
    # Reductions are loops that are to be vectorised, which GCC's -O2 hardly does.
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-Wall",
    "-Wextra",
    "-Werror",
]

# For a shared library of the wheel: every symbol must be found in the libraries named, and where it is loaded from
# is said by its own RUNPATH alone.
SHARED_LINKOPTS = [
    "-fuse-ld=bfd",
    "-Wl,-z,defs",
    "-Wl,--enable-new-dtags",
    "-pthread",
]
