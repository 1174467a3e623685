"""Real English text from Debian or from Python itself, as word numbers.

The repository contains none of it: apt-get fetches a package when it is needed.
"""

from __future__ import annotations

import collections
import gzip
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

# Name: Debian package, glob of its texts. All are free; see their copyright files.
PACKAGES = {
    "python-docs": ("python3-doc", "usr/share/doc/*/html/_sources/**/*.txt"),  # 11 MB, PSF licence
    "debian-reference": (  # 1 MB, GPL
        "debian-reference-en",
        "usr/share/debian-reference/debian-reference.en.txt*",
    ),
}
CORPORA = ("installed", *PACKAGES)
# A run of one punctuation character is one word.
WORD = re.compile(r"[a-z]+|[0-9]+|([^\sa-z0-9])\1*")
UNKNOWN = 0  # the number of words outside the vocabulary


def read(corpus: str) -> str:
    """The text of a corpus; "installed" is Python's own language reference and needs no
    download."""
    if corpus == "installed":
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))
    package, pattern = PACKAGES[corpus]
    with tempfile.TemporaryDirectory(prefix="text-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt-get drops its privileges
        _unpack(package, folder)
        # Resolve the path, because a package may link to another package's folder.
        found = (path.resolve() for path in folder.glob(pattern) if path.is_file())
        paths = sorted({path for path in found if path.is_relative_to(folder.resolve())})
        if not paths:
            raise FileNotFoundError(f"no {pattern} in the Debian package {package}")
        return "\n".join(_text(path) for path in paths)


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace")


def _unpack(package: str, folder: Path) -> None:
    """Fetches and unpacks a package; for a metapackage, also the -doc packages that it names."""
    if shutil.which("apt-get") is None:
        raise FileNotFoundError("apt-get not found: use --corpus installed")
    names = [package]
    depends = _run(["apt-cache", "depends", package], folder)
    names += re.findall(r"^\s*Depends: (\S+-doc)$", depends, re.MULTILINE)
    _run(["apt-get", "download", *names], folder)
    for archive in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(archive), str(folder)], folder)


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def tokens(text: str, vocabulary: int) -> np.ndarray:
    """The text as word numbers, int32: 1 to vocabulary - 1 by frequency, else UNKNOWN."""
    words = [match[0] for match in WORD.finditer(text.lower())]
    counts = collections.Counter(words)
    # Words of equal frequency are ordered alphabetically, so that the numbers are reproducible.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 1]
    number = {word: index for index, word in enumerate(ranked, start=1)}
    return np.array([number.get(word, UNKNOWN) for word in words], dtype=np.int32)
