"""`refresh` and `unpack`: keep the series exact, and let a developer edit it as git commits.

wheel.py unpack DIR          each patch is a commit: subject = file name, body = its header
(edit, commit --amend, rebase -i, or commit a new one as NNNN-what-it-does.patch)
wheel.py refresh --from DIR  the commits become the series
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
    """Applies each patch to the pinned version, moved or not, and rewrites it where it lies now."""
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
    return lines + [f"{name} had moved: read its diff again" for name in moved]


def unpack(layout: Layout, target: Target, directory: Path) -> list[str]:
    """A git tree of every Python file of the official wheel, and a commit for each patch."""
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
    """Writes the commits of an unpacked tree as the series."""
    _refuse_other(layout)
    if not (directory / ".git").exists():
        raise BuildError(f"{directory} is not a tree of wheel.py unpack: give that directory")
    if dirty := _git(directory, "status", "--porcelain").strip():
        raise BuildError(
            f"{directory} has changes that are not committed ({dirty[:60]}): commit them"
        )
    return _write(
        layout.patches, read_series(layout.patches, layout.other_version), _from_commits(directory)
    )


def _refuse_other(layout: Layout) -> None:
    if layout.other_version:
        raise BuildError(
            f"the series is that of the TensorFlow developed on, not of {layout.other_version}:"
            f" leave --tensorflow out; a variant is edited by hand in {layout.patches}/X.Y/"
        )


def _official(layout: Layout, target: Target) -> Path:
    return official_wheel(layout, read_lock(layout.lock), target)


def _base(wheel: RawZip, names: list[str], tree: Path) -> None:
    """The official files as the first commit."""
    tree.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wheel.read(name))
    _git(tree, "init", "--quiet", "--initial-branch=patches")
    _commit(tree, f"{wheel.path.name}\n")


def _commit_series(patches: list[Patch], tree: Path) -> list[str]:
    """Commits each patch; returns the names of those that did not lie exactly where they said."""
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
                f"commit {commit[:12]} is called {name!r}: its subject must be the patch's own file"
                " name, like 0003-what-it-does.patch"
            )
        diff = _git(
            tree, "diff", "--no-color", "--no-ext-diff", "--no-renames", "--unified=3",
            "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", f"{commit}~", commit,
        )  # fmt: skip
        header = body.strip("\n")
        gap = "\n" if header.endswith("\n---") else "\n\n"
        text = (f"{header}{gap}" if header else "") + _NOISE.sub("", diff)
        patch = split(name, text)
        touched([patch])  # refuses what a patch may not change
        patches.append(patch)
    return patches


def _write(directory: Path, old: list[Patch], new: list[Patch]) -> list[str]:
    """Makes the directory hold the new series; says what changed."""
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
    return lines or [f"{len(new)} in the series, none changed"]


def _git(tree: Path, *arguments: str) -> str:
    """Runs git in the tree, untouched by the user's settings and hooks."""
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
