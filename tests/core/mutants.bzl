"""Deliberate bugs, each in a file of the product, which a test must find.

If the line that a mutant changes no longer exists, the build fails: rewrite the mutant.
"""

load("@rules_cc//cc:defs.bzl", "cc_test")
load("//tensorflow_patches:options.bzl", "COPTS")

def mutant_tests(mutants, finder, size = "medium"):
    """Defines a test of the full tier for each mutant, which passes if `finder` finds the bug.

    Args:
      mutants: name -> (file, sed expression that changes it).
      finder: an alwayslink library with the test.
      size: the size of the tests.
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
            # Removing a line may leave something unused.
            copts = COPTS + ["-Wno-unused"],
            # The mutant's definitions come first and take precedence.
            linkopts = ["-Wl,--allow-multiple-definition"],
            linkstatic = True,
            tags = ["full"],
            deps = [
                finder,
                "//tensorflow_patches/core",
            ],
        )
