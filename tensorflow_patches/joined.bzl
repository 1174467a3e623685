"""Compiles many files as one.

Compiling a file mostly takes the time of its headers: 7 of 9 seconds if it includes TensorFlow's, 1
of 2 seconds for a file of the engine.
"""

def joined(name, files):
    """Returns the sources of `name`: one, which contains all of `files`.

    Names in the files' unnamed namespaces must therefore differ. Error messages name the files and
    their lines. With -fPIC, functions are still called by their symbols, so a mutant's definitions
    take precedence over those of this source, too (tests/core/mutants.bzl).
    """
    if len(files) == 1:
        return files
    native.genrule(
        name = name + "_source",
        srcs = files,
        outs = [name + "_source.cc"],
        cmd = """for file in $(SRCS); do
            echo "#line 1 \\"$$file\\""
            cat $$file
        done >$@""",
    )
    return [name + "_source.cc"]

def joined_folders(files):
    """Returns the sources of a library: one for each folder of `files`."""
    folders = {}
    for file in files:
        folders.setdefault(file.rpartition("/")[0], []).append(file)
    return [source for name, some in folders.items() for source in joined(name, some)]
