"""Breaks the product in one way after another and checks that the quick tier's tests notice.

    .venv/bin/python tests/mutations.py            # all; some minutes
    .venv/bin/python tests/mutations.py apart off  # only these
    .venv/bin/python tests/mutations.py rows       # removes each row of docs/replaced.md; hours

A mutation replaces a line of the product in a copy of it (.cache/mutations: the environment as hard
links; for C++ the sources, built there), so the checkout and the environment do not change. Then
the tests that should break run as in `./install.sh --test`. The mutation is caught if some fail,
and missed if all pass. If a mutation's line no longer exists, that is an error: rewrite the
mutation for the new code.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from extras import load
from mutants.gpus import GPUS
from mutants.mutation import FULL, Mutation

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".cache" / "mutations"
TREE, VENV = PLACE / "tree", PLACE / "venv"
LIBRARY = "tensorflow_patches/glue/libtensorflow_mpi.so"


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "average",
        "an average returns its input",
        "  const DataType wire = WireType(signature.dtype);\n",
        "  const DataType wire = WireType(signature.dtype);\n"
        "  if (signature.op == ReduceOp::kAverage) {\n"
        "    const char* const from = static_cast<const char*>(in);\n"
        "    const std::vector<char> own(from, from + count * SizeOf(wire));\n"
        "    const Reduction sum = {count, wire, WireOp(signature.op), scale};\n"
        "    const Status status = transport_->Allreduce(in, out, sum, deadline);\n"
        "    std::memcpy(out, own.data(), own.size());\n"
        "    return status;\n"
        "  }\n",
        (
            "test_optimizer_ops.py::test_equals_one_process_on_the_whole_batch",
            "test_compiled.py::test_equals_one_process",
            "test_compat_v1.py::test_equals_one_process",
            "test_keras_models.py",
        ),
        cpp=True,
    ),
    Mutation(
        "apart",
        "a rank keeps its own first variables",
        "            states[index].write(value)\n",
        "            pass\n",
        ("test_start.py",),
    ),
    Mutation(
        "lost",
        "a rank that stops with an error counts as ended",
        "    if why is not None:\n        _leave(why)\n",
        "    if False:\n        _leave(why)\n",
        ("test_errors.py::test_when_a_rank_ends_the_others_end",),
    ),
    Mutation(
        "settings",
        "settings that differ between ranks are not noticed",
        "      const std::string differences = Differences(settings);\n",
        "      const std::string differences;\n",
        ("test_waits.py::test_different_settings_are_named",),
        cpp=True,
    ),
    Mutation(
        "watch",
        "a rank waits forever for another to end",
        "self._timeout and time.monotonic() - self._worked >= self._timeout:\n",
        "False:\n",
        ("test_waits.py::test_a_rank_says_whom_it_waits_for_and_the_wait_ends",),
    ),
    Mutation(
        "code",
        "a rank that ends with another exit code than 0 counts as successful",
        "    if _exit_code in (None, 0):\n",
        "    if True:\n",
        ("test_errors.py::test_any_end_but_success_fails_the_job",),
    ),
    Mutation(
        "child",
        "a forked child continues as a rank",
        "    group.deactivate_in_child()\n",
        "    pass\n",
        ("test_gate.py::test_a_forked_child_trains_like_one_process",),
    ),
    Mutation(
        "deadlock",
        "ranks that wait for one another are not detected",
        "  if (now - deadlocked_since_ >= patience && next_.fatal.empty()) {\n",
        "  if (false) {\n",
        ("test_deadlocks.py::test_a_deadlock_names_within_seconds_who_waits_for_whom",),
        cpp=True,
    ),
    Mutation(
        "check",
        "replicas that diverge are not detected",
        "        if (hashes[:, index] != hashes[0, index]).any():\n",
        "        if False:\n",
        ("test_replicas.py",),
    ),
    Mutation(
        "owner",
        "a folder of another user is trusted",
        "        if status.st_uid != os.getuid():\n",
        "        if False:\n",
        ("test_private.py::test_another_users_folder_is_refused",),
    ),
    Mutation(
        "file",
        "ranks wait for a save that rank 0 does not make",
        "        elif ended or rank_0_waits - self.rank_0_waits_at_miss >= _POSTS_UNTIL_ERROR:\n",
        "        elif False:\n",
        ("test_names.py::test_a_save_that_rank_0_does_not_make_ends_when_rank_0_waits",),
        tier=FULL,
    ),
    Mutation(
        "frozen",
        "objects of TensorFlow's imports are garbage-collected when a rank fails",
        "        hooking.when_imported(module, lambda _: gc.freeze())\n",
        "        pass\n",
        ("test_errors.py::test_any_end_but_success_fails_the_job",),
    ),
    Mutation(
        "off",
        "with averaging off the library is loaded",
        "    if not gate.on:\n",
        "    if not gate.on:\n"
        "        from tensorflow.mpi._src.runtime import c_api\n"
        "        c_api.load()\n",
        ("test_gate.py::test_closed_no_library_is_loaded",),
    ),
    Mutation(
        "on",
        "TF_MPI_ENABLE=0 does not turn averaging off",
        '        return Gate(False, "TF_MPI_ENABLE=0", found)\n',
        '        return Gate(True, "TF_MPI_ENABLE=0", found)\n',
        (
            "test_gate.py::test_closed_no_library_is_loaded",
            "test_keras_fit.py::test_with_averaging_off_ranks_behave_like_stock_processes",
        ),
    ),
    Mutation(
        "draws",
        "a rank draws for the first rows of the batch",
        "        return group.rank * own, group.size * own\n",
        "        return 0, group.size * own\n",
        ("test_draws.py::test_a_step_draws_its_rows_of_one_processs_draws",),
    ),
    Mutation(
        "sequence",
        "a generator advances by a rank's numbers, not the batch's",
        "tf.cast(whole, tf.int64) * row)\n",
        "tf.cast(shape[0], tf.int64) * row)\n",
        ("test_draws.py::test_a_step_draws_its_rows_of_one_processs_draws",),
    ),
    Mutation(
        "moments",
        "batch normalization uses the moments of a rank's part",
        "        layer._tf_mpi_synchronized = True\n        return True\n",
        "        return False\n",
        ("test_whole_batch.py::test_normalization_uses_the_whole_batchs_moments",),
    ),
    Mutation(
        "selection",
        "a rank takes one sample too many",
        "    own_size = (size + group.rank) // group.size  # see batch_shard.first_row\n",
        "    own_size = (size + group.rank) // group.size + 1\n",
        ("test_selected.py::test_samples_equal_those_of_one_process",),
    ),
    Mutation(
        "filtered",
        "a selection moves past a filter",
        "    if not transformations.keeps_elements(dataset):\n        found.walls",
        '    if transformations.name(dataset) == "filter":\n'
        "        return _delayed(dataset._input_dataset, found)\n"
        "    if not transformations.keeps_elements(dataset):\n        found.walls",
        ("test_selected.py::test_samples_equal_those_of_one_process",),
    ),
    Mutation(
        "stored",
        "a rank takes the wrong one of its decoded samples",
        "        found = table.lookup(number)\n",
        "        found = table.lookup(number - 1)\n",
        ("test_selected.py::test_samples_equal_those_of_one_process",),
    ),
    Mutation(
        "open",
        "a dataset's undefined order stays undefined",
        "        return op(**{**arguments, **instead})\n",
        "        return op(**arguments)\n",
        ("test_one_order.py::test_an_undefined_order_is_the_same_on_all_ranks",),
    ),
    Mutation(
        "iterations",
        "a shuffle resumes at tf.data's own count",
        "        if not (needs_own and tf.executing_eagerly()):\n",
        "        if drawn or tf.executing_eagerly():\n",
        ("test_one_order.py::test_reading_ahead_does_not_change_the_next_order",),
    ),
    Mutation(
        "keys",
        "all draws of a sample are equal",
        "        self._draws += 1\n        apart = zlib.crc32(repr(seeds).encode())\n",
        "        apart = 0\n",
        ("test_one_order.py::test_a_parallel_map_draws_per_sample",),
    ),
    Mutation(
        "turns",
        "a rank makes the previous rank's batch",
        "            positions = range(group.rank, length, makers)\n",
        "            positions = range(max(group.rank - 1, 0), length, makers)\n",
        ("test_python_batches.py::test_batches_equal_those_of_one_process",),
    ),
    Mutation(
        "seeded",
        "seeded draws are treated as unseeded",
        "        seeded = [one for one in watched.drawn if not generators.is_unseeded(one)]\n",
        "        seeded = []\n",
        ("test_python_batches.py::test_batches_equal_those_of_one_process",),
    ),
    Mutation(
        "purity",
        "a function that reads a mutable table counts as pure",
        "    if any(map(contents.is_writable_resource, function.captured_inputs)):\n",
        "    if False:\n",
        ("test_selected.py::test_a_wall_is_named_and_no_work_moves_past_it",),
    ),
    *GPUS,
)


_TABLE = "TABLE = tuple(row for rows in _PARTS.values() for row in rows)\n"


def rows() -> dict[str, Mutation]:
    """A mutation for each row of the table that wraps something: it removes the row, and the test
    that the row names must fail."""
    table = load("tensorflow.mpi._src.replaced.table")
    return {
        name: Mutation(
            name, row.target, _TABLE, f"{_TABLE}TABLE = TABLE[:{n}] + TABLE[{n + 1} :]\n",
            (row.test,), tier=FULL,
        )
        for n, row in enumerate(table.TABLE)
        for name in [f"row{n}"]
        if row not in (*table.PROCESS, *table.PATCHES) and row.how.name != "USE"
    }  # fmt: skip


def places(mutation: Mutation, root: Path) -> Iterator[Path]:
    """The files below `root` that contain `old`."""
    ending = ".cc" if mutation.cpp else ".py"
    for path in root.rglob(f"*{ending}"):
        if str(path).endswith(mutation.where or ending) and mutation.old in path.read_text():
            yield path


def run(command: list[str], log: Path, cwd: Path = ROOT) -> int:
    with log.open("w") as output:
        return subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ).returncode


def copy_environment() -> None:
    """Makes hard links, so a file must be removed before it is changed."""
    shutil.rmtree(VENV, ignore_errors=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-al", sys.prefix, VENV], check=True)


def copy_tree() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    ignored = shutil.ignore_patterns(".cache", ".git", ".venv", "wheels", "bazel-*", "__pycache__")
    shutil.copytree(ROOT, TREE, ignore=ignored, symlinks=True)
    (TREE / ".cache").mkdir()
    (TREE / ".cache" / "external").symlink_to(ROOT / ".cache" / "external")


def bazel_command() -> list[str]:
    """Bazel with the cache of the checkout, whose next build recompiles the mutated file."""
    asked = ["bazel", "--batch", "info", "output_base"]
    base = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return ["bazel", "--batch", f"--output_base={base.strip()}"]


def build_library() -> None:
    """Builds the copied sources and puts the library into the copied environment."""
    log = PLACE / "bazel.log"
    if run([*bazel_command(), "build", f"//{LIBRARY.replace('/lib', ':lib')}"], log, TREE):
        raise SystemExit(f"the mutated library does not compile: {log}")
    (target,) = VENV.glob(f"lib/python3*/site-packages/tensorflow/mpi/lib/{Path(LIBRARY).name}")
    target.unlink()
    shutil.copy(TREE / ".cache" / "bazel-bin" / LIBRARY, target)


def failures(text: str) -> list[str]:
    return sorted(set(re.findall(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", text, re.M)))


def gtest_failures(text: str) -> list[str]:
    """The tests that failed, and those during which the process ended."""
    failed = set(re.findall(r"^\[  FAILED  \] ([^\s,]+\.[^\s,]+)", text, re.M))
    begun = set(re.findall(r"^\[ RUN      \] (\S+)", text, re.M))
    ended = set(re.findall(r"^\[ +(?:OK|FAILED|SKIPPED) +\] ([^\s,]+)", text, re.M))
    return sorted(failed | (begun - ended))


def caught(mutation: Mutation) -> bool:
    """Applies the mutation to fresh copies, runs its tests, and returns whether one failed.

    Also returns True if the mutation cannot run here.
    """
    begin = time.monotonic()
    if mutation.standin and not importlib.metadata.version("tensorflow").endswith("cuda"):
        print(f"{mutation.name}: not run, because it needs the GPU wheel: ./install.sh --gpu")
        return True
    if not mutation.targets:
        copy_environment()
    if mutation.cpp:
        copy_tree()
    root = TREE / "tensorflow_patches"
    if not mutation.cpp:
        (root,) = VENV.glob("lib/python3*/site-packages/tensorflow/mpi")
    found = list(places(mutation, root))
    if len(found) != 1 or found[0].read_text().count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.name}: expected its line in exactly one place, found {found}: rewrite the "
            "mutation in tests/mutations.py"
        )
    text = found[0].read_text().replace(mutation.old, mutation.new)
    found[0].unlink()
    found[0].write_text(text)
    log = PLACE / f"{mutation.name}.log"
    if mutation.targets:
        targets = [f"//tests/core:{target}" for target in mutation.targets]
        code = run([*bazel_command(), "test", "--test_output=all", *targets], log, TREE)
        failed = gtest_failures(log.read_text())
        verdict = "caught" if code == 3 and failed else "MISSED" if code == 0 else f"bazel: {code}"
        return report(mutation, verdict, failed, begin)
    if mutation.cpp:
        build_library()
    if mutation.standin:
        return report(mutation, *on_standin(mutation, log), begin)
    tests = []
    for name in mutation.tests:
        file, _, test = name.partition("::")
        (path,) = (ROOT / "tests").rglob(file)
        tests.append(f"{path}::{test}" if test else str(path))
    pytest = [str(VENV / "bin" / "python"), "-m", "pytest", "-m", mutation.tier]
    together = ["--numprocesses", "2", "--dist", "loadfile", "--pool"]
    code = run([*pytest, *together, *tests], log)
    failed = failures(log.read_text())
    verdict = "caught" if code == 1 and failed else "MISSED" if code == 0 else f"pytest: {code}"
    return report(mutation, verdict, failed, begin)


def on_standin(mutation: Mutation, log: Path) -> tuple[str, list[str]]:
    """The verdict and the scripts that failed."""
    here = ROOT / "tests" / "gpu" / "standin"
    python = str(VENV / "bin" / "python")
    failed = []
    for script in mutation.standin:
        ranks = ["mpirun", "-np", "2", "--bind-to", "none", "-x", "FAKE_CUDA_DELAY_US=3000"]
        if run([*ranks, str(here / "run.sh"), python, str(here / script)], log):
            # Any other outcome means that the script did not get to its check.
            if not re.search("no average on the GPU|is not rank 0's", log.read_text()):
                return f"{script} failed for another reason: {log}", []
            failed.append(script)
    return "caught" if failed == list(mutation.standin) else "MISSED", failed


def report(mutation: Mutation, verdict: str, failed: list[str], begin: float) -> bool:
    print(f"{mutation.name}: {mutation.what}: {verdict}, {time.monotonic() - begin:.0f} s")
    for name in failed[:5]:
        print(f"    {name}")
    if len(failed) > 5:
        print(f"    and {len(failed) - 5} more; {PLACE / mutation.name}.log")
    return verdict == "caught"


def main() -> int:
    of_table = rows()
    known = {mutation.name: mutation for mutation in MUTATIONS} | of_table
    names = [mutation.name for mutation in MUTATIONS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    choices = [*known, "rows", []]
    parser.add_argument("names", nargs="*", choices=choices, metavar="NAME", help=str(names))
    chosen = parser.parse_args().names or names
    chosen = [*of_table] if chosen == ["rows"] else chosen
    missed = [name for name in chosen if not caught(known[name])]
    print(f"missed: {', '.join(missed)}" if missed else "all mutations that ran were caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
