"""`refresh` and `unpack`: keep the patches exact, and let a developer edit them as git commits.

wheel.py unpack DIR          turns each patch into a commit: subject = file name, body = header
(edit, commit --amend, rebase -i, or commit a new one as NNNN-what-it-does.patch)
wheel.py refresh --from DIR  turns the commits back into the series
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from . import process
from .errors import BuildError
from .files import only_one
from .inputs.official import official_wheel
from .layout import Layout
from .lock import read_lock
from .series import Fit, Patch, apply_patch, read_series, split, touched
from .target import Target
from .wheelfile.rawzip import RawZip

_NAME = re.compile(r"^[0-9a-z][0-9a-zA-Z_.-]*\.patch$")
_NOISE = re.compile(r"^(?:diff --git|index|old mode|new mode|similarity index) .*\n", re.M)


def refresh(layout: Layout, target: Target) -> list[str]:
    """Applies each patch to the pinned version, and rewrites it for the lines it now applies to."""
    _refuse_other(layout)
    patches = read_series(layout.patches, layout.other_version)
    with only_one(layout.external), RawZip(_official(layout, target)) as wheel:
        layout.scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=layout.scratch) as directory:
            tree = Path(directory) / "tree"
            _base(wheel, touched(patches), tree)
            moved = _commit_series(patches, tree)
            fresh = _from_commits(tree)
    lines = _write(layout.patches, patches, fresh)
    return lines + [f"{name} had moved: review its diff" for name in moved]


def unpack(layout: Layout, target: Target, directory: Path) -> list[str]:
    """Creates a git tree of the official wheel's Python files, with a commit for each patch."""
    if directory.exists() and any(directory.iterdir()):
        raise BuildError(f"{directory} is not empty: name a new directory")
    patches = read_series(layout.patches, layout.other_version)
    with only_one(layout.external), RawZip(_official(layout, target)) as wheel:
        names = [
            name
            for name in wheel.files()
            if name.endswith(".py") and name.startswith("tensorflow/") and "/include/" not in name
        ]
        _base(wheel, names, directory.resolve())
        _commit_series(patches, directory.resolve())
    return [f"{directory}: {len(names)} files, {len(patches)} commits from the series"]


def refresh_from(layout: Layout, directory: Path) -> list[str]:
    """Writes the commits of an unpacked tree to the series."""
    _refuse_other(layout)
    if not (directory / ".git").exists():
        raise BuildError(
            f"{directory} was not created by wheel.py unpack: give a directory that was"
        )
    if dirty := _git(directory, "status", "--porcelain").strip():
        raise BuildError(f"{directory} has uncommitted changes ({dirty[:60]}): commit them")
    return _write(
        layout.patches, read_series(layout.patches, layout.other_version), _from_commits(directory)
    )


def _refuse_other(layout: Layout) -> None:
    if layout.other_version:
        raise BuildError(
            f"the series cannot be rewritten for TensorFlow {layout.other_version}: omit"
            f" --tensorflow, or edit the variant by hand in {layout.patches}/X.Y/"
        )


def _official(layout: Layout, target: Target) -> Path:
    return official_wheel(layout, read_lock(layout.lock), target)


def _base(wheel: RawZip, names: list[str], tree: Path) -> None:
    """Creates the tree, with the official files as its first commit."""
    tree.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wheel.read(name))
    _git(tree, "init", "--quiet", "--initial-branch=patches")
    _commit(tree, f"{wheel.path.name}\n")


def _commit_series(patches: list[Patch], tree: Path) -> list[str]:
    """Commits each patch; returns the names of those that did not apply at their own lines."""
    moved = []
    for patch in patches:
        if not apply_patch(patch, tree, Fit.FUZZY):
            moved.append(patch.name)
        _commit(tree, f"{patch.name}\n\n{patch.header}")
    return moved


def _commit(tree: Path, message: str) -> None:
    _git(tree, "add", "--all", "--force", ".")
    _git(tree, "commit", "--quiet", "--allow-empty", "--cleanup=verbatim", f"--message={message}")


def _from_commits(tree: Path) -> list[Patch]:
    """The commits after the first one, as patches."""
    commits = _git(tree, "rev-list", "--reverse", "HEAD").split()
    patches: list[Patch] = []
    for commit in commits[1:]:
        message = _git(tree, "show", "--no-patch", "--format=%B", commit)
        name, _, body = message.partition("\n")
        name = name.strip()
        if not _NAME.match(name) or any(name == patch.name for patch in patches):
            raise BuildError(
                f"commit {commit[:12]} has the subject {name!r}: use a unique file name for the"
                " patch, like 0003-what-it-does.patch"
            )
        diff = _git(
            tree, "diff", "--no-color", "--no-ext-diff", "--no-renames", "--unified=3",
            "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", f"{commit}~", commit,
        )  # fmt: skip
        header = body.strip("\n")
        gap = "\n" if header.endswith("\n---") else "\n\n"  # DEP-3: "---" may end a header
        text = (f"{header}{gap}" if header else "") + _NOISE.sub("", diff)
        patch = split(name, text)
        touched([patch])  # raises BuildError if the patch changes a file that it must not
        patches.append(patch)
    return patches


def _write(directory: Path, old: list[Patch], new: list[Patch]) -> list[str]:
    """Writes the new series to the directory; returns a line for each change."""
    before = {patch.name: patch.header + patch.diff for patch in old}
    lines = []
    for patch in new:
        text = patch.header + patch.diff
        if before.get(patch.name) != text:
            lines.append(f"{patch.name} {'rewritten' if patch.name in before else 'added'}")
            (directory / patch.name).write_text(text, encoding="utf-8")
    for name in before.keys() - {patch.name for patch in new}:
        lines.append(f"{name} removed")
        (directory / name).unlink()
    names = [patch.name for patch in new]
    if names != [patch.name for patch in old]:
        (directory / "series").write_text("".join(f"{name}\n" for name in names), "utf-8")
        lines.append("series rewritten")
    return lines or [f"{len(new)} patches in the series, none changed"]


def _git(tree: Path, *arguments: str) -> str:
    """Runs git in the tree, without the user's settings and hooks."""
    who = {"NAME": "wheel.py", "EMAIL": "wheel.py@localhost", "DATE": "2000-01-01T00:00:00+0000"}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    environment |= {
        f"GIT_{role}_{key}": who[key] for role in ("AUTHOR", "COMMITTER") for key in who
    }
    result = process.run(
        ["git", "-c", "core.autocrlf=false", "-c", "commit.gpgsign=false", *arguments],
        missing="the program git is missing: install it (apt-get install git)",
        cwd=tree,
        env=environment,
    )
    if result.code:
        raise BuildError(f"git {arguments[0]} failed in {tree}: {result.last_line}")
    return result.output
