"""Links many test files into few programs, because linking takes longer than running most tests."""

load("@rules_cc//cc:defs.bzl", "cc_test")
load("//tensorflow_patches:joined.bzl", "joined")

def room_tests(sources, one_thread, gpu, gpu_deps, alone, deps, **attributes):
    """Defines two programs per room: ROOM_test, with threads, and ROOM_one_thread_test, without.

    Args:
      sources: test files, ROOM/NAME_test.cc.
      one_thread: those that start no threads. The tag of this name excludes their programs from
        ThreadSanitizer, which would find nothing in them.
      gpu: rooms with simulated GPUs. The tag of this name excludes their programs from
        ThreadSanitizer in CI, but not in the full tier.
      gpu_deps: what these rooms need in addition to `deps`.
      alone: files that need a program of their own, named after them.
      deps: what all programs need.
      **attributes: attributes of the programs.
    """
    programs = {}
    for source in sources:
        room, name = source[:-len(".cc")].split("/")
        if source not in alone:
            name = room + ("_one_thread_test" if source in one_thread else "_test")
        programs.setdefault(name, []).append(source)
    for name, files in programs.items():
        on_gpu = files[0].split("/")[0] in gpu
        cc_test(
            name = name,
            srcs = joined(name, files),
            deps = deps + (gpu_deps if on_gpu else []),
            tags = (["one_thread"] if files[0] in one_thread else []) +
                   (["gpu"] if on_gpu else []),
            **attributes
        )
