"""The series applies exactly or not at all; refresh and unpack preserve it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from standin import INIT, PATCH, Checkout, write_official

from wheelbuilder import process
from wheelbuilder.errors import BuildError
from wheelbuilder.files import sha256_of
from wheelbuilder.refresh import refresh, refresh_from, unpack
from wheelbuilder.series import apply_series, read_series, touched
from wheelbuilder.target import Target

TARGET = Target(3, 11)


def replace_official(checkout: Checkout, init: str) -> None:
    """Simulates another TensorFlow: other content in the official wheel, and its lock updated."""
    before = sha256_of(checkout.official)
    write_official(checkout.official, init)
    text = checkout.layout.lock.read_text()
    checkout.layout.lock.write_text(text.replace(before, sha256_of(checkout.official)))


def test_an_exact_patch_applies(checkout: Checkout) -> None:
    patches = read_series(checkout.layout.patches)
    assert touched(patches) == ["tensorflow/__init__.py"]
    made = apply_series(patches, lambda name: INIT.encode(), checkout.layout.scratch)
    expected = INIT.replace("line_20", "import tensorflow.mpi\nline_20", 1)
    assert made == {"tensorflow/__init__.py": expected.encode()}
    assert list(checkout.layout.scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("init", "match"),
    [
        ("# one line more\n" + INIT, r"does not apply exactly: Hunk #1 succeeded at 19 .*offset"),
        (INIT.replace("line_18 =", "changed ="), "0001-import.patch does not apply: .*FAILED"),
        (INIT.replace("line_17 =", "changed ="), "0001-import.patch does not apply: .*FAILED"),
        (INIT.replace("line_20", "import tensorflow.mpi\nline_20"), "does not apply: .*Reversed"),
    ],
    ids=["offset", "context", "fuzz", "applied"],
)
def test_a_patch_that_does_not_apply_exactly_is_refused(
    checkout: Checkout, init: str, match: str
) -> None:
    replace_official(checkout, init)
    with pytest.raises(BuildError, match=match):
        checkout.pack()
    assert not checkout.out.exists()


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (
            "tensorflow/__init__.py",
            "../../etc/x.py",
            "a patch must change a file of the wheel",
        ),
        ("b/tensorflow/__init__.py", "b/tensorflow/other.py", "a patch must change a file"),
        ("a/tensorflow/__init__.py", "/dev/null", "a patch must change a file"),
        ("tensorflow/__init__.py", "tensorflow/mpi/a.py", "not a Python file of the official"),
        ("tensorflow/__init__.py", "tensorflow/lib.so.2", "not a Python file of the official"),
        ("tensorflow/__init__.py", "tensorflow/gone.py", "has no tensorflow/gone.py"),
    ],
)
def test_a_patch_of_anything_but_an_official_python_file_is_refused(
    checkout: Checkout, old: str, new: str, match: str
) -> None:
    checkout.patch.write_text(PATCH.replace(old, new))
    with pytest.raises(BuildError, match=match):
        checkout.pack()


def test_a_patch_outside_the_series_is_refused(checkout: Checkout) -> None:
    (checkout.layout.patches / "0002-forgotten.patch").write_text(PATCH)
    with pytest.raises(BuildError, match=r"0002-forgotten.patch is not in the series"):
        checkout.pack()


def test_a_series_that_lists_a_missing_patch_is_refused(checkout: Checkout) -> None:
    checkout.patch.unlink()
    with pytest.raises(BuildError, match=r"0001-import.patch is in the series but missing"):
        checkout.pack()


def test_a_patch_without_a_diff_is_refused(checkout: Checkout) -> None:
    checkout.patch.write_text("Description: nothing\n")
    with pytest.raises(BuildError, match="contains no diff"):
        checkout.pack()


def test_without_a_series_nothing_changes(checkout: Checkout) -> None:
    checkout.patch.unlink()
    (checkout.layout.patches / "series").unlink()
    checkout.pack()


def test_refresh_leaves_an_exact_series_alone(checkout: Checkout) -> None:
    assert refresh(checkout.layout, TARGET) == ["1 patches in the series, none changed"]
    assert checkout.patch.read_text() == PATCH


def test_refresh_moves_a_patch_and_keeps_its_header(checkout: Checkout) -> None:
    replace_official(checkout, "# one line more\n" + INIT)
    lines = refresh(checkout.layout, TARGET)
    assert lines == [
        "0001-import.patch rewritten",
        "0001-import.patch had moved: review its diff",
    ]
    text = checkout.patch.read_text()
    assert text == PATCH.replace("@@ -18,6 +18,7 @@", "@@ -19,6 +19,7 @@")
    checkout.pack()


def test_refresh_refuses_a_patch_that_does_not_apply_and_changes_nothing(
    checkout: Checkout,
) -> None:
    replace_official(checkout, "nothing = 0\n")
    with pytest.raises(BuildError, match=r"0001-import.patch does not apply"):
        refresh(checkout.layout, TARGET)
    assert checkout.patch.read_text() == PATCH


def git(tree: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=tree, check=True, capture_output=True, text=True
    ).stdout


def test_commits_of_an_unpacked_tree_become_the_series(checkout: Checkout, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    assert unpack(checkout.layout, TARGET, tree) == [f"{tree}: 2 files, 1 commits from the series"]
    assert git(tree, "log", "-1", "--format=%s").strip() == "0001-import.patch"
    assert refresh_from(checkout.layout, tree) == ["1 patches in the series, none changed"]

    path = tree / "tensorflow" / "__init__.py"
    path.write_text(path.read_text().replace("import tensorflow.mpi", "import tensorflow.mpi.hook"))
    with pytest.raises(BuildError, match="has uncommitted changes"):
        refresh_from(checkout.layout, tree)
    git(tree, "commit", "--all", "--amend", "--no-edit")
    util = tree / "tensorflow" / "python" / "util.py"
    util.write_text("x = 2\n")
    git(tree, "commit", "--all", "-m", "0002-two.patch\n\nDescription: x is two")
    assert refresh_from(checkout.layout, tree) == [
        "0001-import.patch rewritten",
        "0002-two.patch added",
        "series rewritten",
    ]
    assert checkout.patch.read_text() == PATCH.replace("tensorflow.mpi\n", "tensorflow.mpi.hook\n")
    made = apply_series(
        read_series(checkout.layout.patches),
        lambda name: INIT.encode() if "__init__" in name else b"x = 1\n",
        checkout.layout.scratch,
    )
    assert made["tensorflow/python/util.py"] == b"x = 2\n"

    git(tree, "reset", "--quiet", "--hard", "HEAD~1")
    lines = refresh_from(checkout.layout, tree)
    assert lines == ["0002-two.patch removed", "series rewritten"]
    assert not (checkout.layout.patches / "0002-two.patch").exists()


def test_refresh_refuses_a_commit_whose_subject_is_not_a_patch_name(
    checkout: Checkout, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    unpack(checkout.layout, TARGET, tree)
    git(tree, "commit", "--allow-empty", "-m", "some words")
    with pytest.raises(BuildError, match="use a unique file name for the patch"):
        refresh_from(checkout.layout, tree)


def test_unpack_refuses_a_directory_that_is_not_empty(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mine").touch()
    with pytest.raises(BuildError, match="is not empty"):
        unpack(checkout.layout, TARGET, tmp_path / "tree")


def test_a_missing_patch_program_is_named(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match="the program patch is missing: install it"):
        checkout.pack()


def test_a_result_without_output_has_a_last_line() -> None:
    assert process.Result(3, "\n").last_line == "exit status 3, no output"
