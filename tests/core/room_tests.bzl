"""Few programs for many files of tests: to link one takes longer than to run most."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def room_tests(sources, one_thread, gpu, alone, **attributes):
    """Of each room one program with threads, ROOM_test, and one without, ROOM_one_thread_test.

    Args:
      sources: files of tests, ROOM/NAME_test.cc.
      one_thread: those of them that start no thread: the tag of this name keeps their programs
        from ThreadSanitizer, which has nothing to find in them.
      gpu: rooms of simulated GPUs, whose programs have the tag of this name: in CI ThreadSanitizer
        leaves them out, the full tier does not.
      alone: those that go with no other, in a program of their name.
      **attributes: of the programs.
    """
    programs = {}
    for source in sources:
        room, name = source[:-len(".cc")].split("/")
        if source not in alone:
            name = room + ("_one_thread_test" if source in one_thread else "_test")
        programs.setdefault(name, []).append(source)
    for name, files in programs.items():
        cc_test(
            name = name,
            srcs = files,
            tags = (["one_thread"] if files[0] in one_thread else []) +
                   (["gpu"] if files[0].split("/")[0] in gpu else []),
            **attributes
        )
