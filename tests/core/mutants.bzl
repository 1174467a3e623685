"""Bugs that are put in on purpose, each in a file of the product: a test must find them.

Where the line is no longer there the build fails: write the bug anew.
"""

load("@rules_cc//cc:defs.bzl", "cc_test")
load("//tensorflow_patches:options.bzl", "COPTS")

def mutant_tests(mutants, finder, size = "medium"):
    """A test of the full tier for each: it passes if `finder` finds the bug.

    Args:
      mutants: by name, the file and the sed expression that changes it.
      finder: a library, alwayslink, with the test.
      size: of the tests.
    """
    for name, (file, line) in mutants.items():
        native.genrule(
            name = "mutant_" + name,
            testonly = True,
            srcs = ["//tensorflow_patches/core:" + file],
            outs = ["mutant_%s.cc" % name],
            cmd = "sed -e '%s' $< > $@ && ! cmp -s $< $@" % line.replace("$", "$$"),
        )
        cc_test(
            name = "mutant_%s_test" % name,
            size = size,
            srcs = [":mutant_" + name],
            # A line less may leave something unused.
            copts = COPTS + ["-Wno-unused"],
            # What the mutant defines comes first, and stays.
            linkopts = ["-Wl,--allow-multiple-definition"],
            linkstatic = True,
            tags = ["full"],
            deps = [
                finder,
                "//tensorflow_patches/core",
            ],
        )
