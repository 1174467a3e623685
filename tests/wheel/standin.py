"""A small stand-in for the official wheel, its lock, and a checkout around both."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from wheelbuilder.layout import CPU, Flavour, Layout
from wheelbuilder.lock import Lock, read_lock
from wheelbuilder.make import pack
from wheelbuilder.series import apply_series, read_series
from wheelbuilder.wheelfile import record
from wheelbuilder.wheelfile.wheeledit import WheelEditor

VERSION = "9.9.0"
INFO = f"tensorflow_cpu-{VERSION}.dist-info"
OUR_INFO = f"tensorflow-{VERSION}+mpi.1.cpu.dist-info"
WHEN = (2026, 3, 5, 0, 16, 0)

INIT = "".join(f"line_{number} = {number}\n" for number in range(40))

PATCH = """\
Description: Something before line 20
 It is the only thing it does.
Forwarded: not-needed

--- a/tensorflow/__init__.py
+++ b/tensorflow/__init__.py
@@ -18,6 +18,7 @@ line_16 = 16
 line_17 = 17
 line_18 = 18
 line_19 = 19
+import tensorflow.mpi
 line_20 = 20
 line_21 = 21
 line_22 = 22
"""

METADATA = f"""\
Metadata-Version: 2.4
Name: NAME
Version: {VERSION}
Requires-Dist: six>=1.12.0
Provides-Extra: and-cuda
Requires-Dist: nvidia-nccl-cu12; extra == "and-cuda"
Dynamic: summary

A description with a Version: {VERSION} in it.
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: setuptools (78.1.1)
Root-Is-Purelib: false
Tag: cp311-cp311-manylinux_2_27_x86_64

"""


def write_official(path: Path, init: str = INIT) -> None:
    name = path.name.partition("-")[0]
    info = f"{name}-{VERSION}.dist-info"
    files = {
        "tensorflow/__init__.py": init.encode(),
        "tensorflow/big.bin": bytes(range(256)) * 400,
        "tensorflow/python/util.py": b"x = 1\n",
        f"{info}/METADATA": METADATA.replace("NAME", name).encode(),
        f"{info}/WHEEL": WHEEL.encode(),
        f"{info}/top_level.txt": b"tensorflow\n",
    }
    rows = {name: record.row_of(data) for name, data in files.items()}
    rows[f"{info}/RECORD"] = ("", "")
    files[f"{info}/RECORD"] = record.render(rows)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("tensorflow/", WHEN), b"")
        archive.writestr(zipfile.ZipInfo(f"{info}/", WHEN), b"")
        for entry, data in files.items():
            member = zipfile.ZipInfo(entry, WHEN)
            member.external_attr = 0o100664 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data, compresslevel=9)


@dataclass
class Checkout:
    """A project in a temporary directory, with its official wheel already in the cache."""

    layout: Layout
    official: Path

    @property
    def lock(self) -> Lock:
        return read_lock(self.layout.lock)

    @property
    def out(self) -> Path:
        return self.layout.root / "wheels"

    @property
    def patch(self) -> Path:
        return self.layout.patches / "0001-import.patch"

    def pack(self, out: Path | None = None, glibcxx: str = "GLIBCXX_3.4.30") -> Path:
        """Does what `make` does after compiling."""
        added = {
            "tensorflow/mpi/__init__.py": b"VERSION = 1\n",
            "tensorflow_mpi.pth": b"import os\n",
            "tensorflow/mpi/lib/libtensorflow_mpi.so": b"\x7fELF not really" * 100,
        }
        with WheelEditor(self.official, self.lock.official_dist_info) as wheel:
            patches = read_series(self.layout.patches)
            changed = apply_series(patches, wheel.read, self.layout.scratch)
            needs = {"libstdc++.so.6": {glibcxx}, "libc.so.6": {"GLIBC_2.17"}}
            return pack(wheel, self.lock, changed, added, needs, out or self.out)


def make_checkout(root: Path, flavour: Flavour = CPU) -> Checkout:
    """A checkout in `root`, with an official wheel in its cache and one patch in its series."""
    layout = Layout(root, root / ".cache", flavour)
    layout.official.mkdir(parents=True)
    name = f"{flavour.official_name}-{VERSION}-cp311-cp311-manylinux_2_27_x86_64.whl"
    official = layout.official / name
    write_official(official)
    digest = hashlib.sha256(official.read_bytes()).hexdigest()
    layout.lock.parent.mkdir(parents=True)
    project = flavour.official_name.replace("_", "-")
    layout.lock.write_text(f"# a comment\n{project}=={VERSION} \\\n    --hash=sha256:{digest}\n")
    layout.patches.mkdir(parents=True)
    (layout.patches / "series").write_text("# the order\n0001-import.patch\n")
    (layout.patches / "0001-import.patch").write_text(PATCH)
    return Checkout(layout, official)
