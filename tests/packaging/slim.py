"""Wheels of TensorFlow without its libraries: enough for pip, and not a gigabyte.

Metadata, tensorflow/__init__.py and, in ours, tensorflow/mpi and the .pth equal those of the real
wheels; pip's decisions depend on nothing else. `import tensorflow` fails at the first library.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from wheelbuilder.inputs.official import official_wheel
from wheelbuilder.layout import CPU, GPU, Flavour, Layout
from wheelbuilder.lock import read_lock
from wheelbuilder.series import apply_series, read_series
from wheelbuilder.target import describe
from wheelbuilder.wheelfile import record
from wheelbuilder.wheelfile.metadata import edit_metadata, wheel_tag
from wheelbuilder.wheelfile.payload import build_info, payload
from wheelbuilder.wheelfile.rawzip import RawZip

INIT = "tensorflow/__init__.py"


@dataclass(frozen=True)
class Slim:
    """Builds slim wheels from the official CPU wheel and this checkout."""

    out: Path
    layout: Layout
    official: Path

    @staticmethod
    def of_checkout(out: Path) -> Slim:
        layout = Layout.of_checkout()
        out.mkdir(parents=True, exist_ok=True)
        return Slim(out, layout, official_wheel(layout, read_lock(layout.lock), describe(None)))

    def stock(self, name: str = "tensorflow_cpu", version: str = "2.21.0") -> Path:
        """An official wheel; another name or version gets the metadata of tensorflow-cpu 2.21.0."""
        metadata = self._metadata(name, version)
        with RawZip(self.official) as wheel:
            files = {INIT: wheel.read(INIT)}
        return self._write(name, version, metadata, files)

    def ours(self, flavour: Flavour = CPU, release: str = "mpi.1") -> Path:
        """The wheel that build/wheel.py builds from this checkout, without the libraries."""
        lock = read_lock(Layout.of_checkout(flavour=flavour).lock)
        version = lock.our_version.replace("mpi.1", release)
        metadata = edit_metadata(self._metadata(lock.official_name, lock.version), lock)
        metadata = metadata.replace(lock.our_version.encode(), version.encode(), 1)
        with RawZip(self.official) as wheel:
            patches = read_series(self.layout.patches)
            files = apply_series(patches, wheel.read, self.layout.scratch)
        files |= payload(self.layout.package, self.layout.start_file, {})
        files["tensorflow/mpi/_build_info.py"] = build_info(version, lock.version, "none", files)
        return self._write("tensorflow", version, metadata, files)

    def gpu(self) -> Path:
        return self.ours(GPU)

    def _metadata(self, name: str, version: str) -> bytes:
        lock = read_lock(self.layout.lock)
        with RawZip(self.official) as wheel:
            text = wheel.read(f"{lock.official_dist_info}/METADATA")
        text = text.replace(b"Name: tensorflow_cpu\n", f"Name: {name}\n".encode(), 1)
        return text.replace(b"\nVersion: 2.21.0\n", f"\nVersion: {version}\n".encode(), 1)

    def _write(self, name: str, version: str, metadata: bytes, files: dict[str, bytes]) -> Path:
        lock = read_lock(self.layout.lock)
        with RawZip(self.official) as wheel:
            about = wheel.read(f"{lock.official_dist_info}/WHEEL")
        info = f"{name}-{version}.dist-info"
        files = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": about}
        rows = {file: record.row_of(data) for file, data in files.items()}
        rows[f"{info}/RECORD"] = ("", "")
        files[f"{info}/RECORD"] = record.render(rows)
        path = self.out / f"{name}-{version}-{wheel_tag(about)}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file, data in files.items():
                archive.writestr(file, data)
        return path
