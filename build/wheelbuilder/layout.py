"""The paths in the checkout and in its cache, and the names in the wheel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Our part of the version 2.21.0+mpi.1.cpu. Incremented with every release on the same TensorFlow.
RELEASE = "mpi.1"
# The name of all our wheels, because it is the one that other packages depend on.
DISTRIBUTION = "tensorflow"
# Our files in the wheel are all in this folder, except START_FILE, which Python's `site` reads at
# every start.
PACKAGE = "tensorflow/mpi"
START_FILE = "tensorflow_mpi.pth"
LIBRARY_DIR = f"{PACKAGE}/lib"
BUILD_INFO = f"{PACKAGE}/_build_info.py"

# The official libraries that ours is linked with.
TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


@dataclass(frozen=True)
class Flavour:
    """One of TensorFlow's official wheels, and how to recognize our wheel built from it."""

    name: str
    # The official wheel's distribution name, as spelled in file names.
    official_name: str
    # The end of our version. "cuda" sorts after "cpu", so pip prefers the GPU wheel, which runs
    # without a GPU, too.
    label: str
    megabytes: int  # of the official wheel

    @property
    def release(self) -> str:
        """The part of our version after the official version and the plus sign."""
        return f"{RELEASE}.{self.label}"


CPU = Flavour("cpu", "tensorflow_cpu", "cpu", 270)
GPU = Flavour("gpu", "tensorflow", "cuda", 570)
FLAVOURS = (CPU, GPU)


@dataclass(frozen=True)
class Library:
    """A library that Bazel builds: its target, its RUNPATH, and the libraries that it needs."""

    target: str
    runpath: str
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.target.rpartition(":")[2]

    @property
    def output(self) -> str:
        """The path below bazel-bin."""
        return self.target.removeprefix("//").replace(":", "/")


# One transport for each MPI ABI, and one for MPICH under the name that Debian gives its library.
TRANSPORTS = {
    "openmpi": "libmpi.so.40",
    "mpich": "libmpi.so.12",
    "abi": "libmpi_abi.so.1",
    "debian": "libmpich.so.12",
}
LIBRARIES = (
    Library(
        "//tensorflow_patches/glue:libtensorflow_mpi.so", "$ORIGIN/../..", TENSORFLOW_LIBRARIES
    ),
    *(
        Library(
            f"//tensorflow_patches/core/transport/mpi:libtfmpi_transport_{name}.so",
            "$ORIGIN/../../../../..",
            (needs,),
        )
        for name, needs in TRANSPORTS.items()
    ),
)


@dataclass(frozen=True)
class Layout:
    """The paths that the builder reads and writes."""

    root: Path
    cache: Path
    flavour: Flavour = CPU
    # Another TensorFlow; the empty string stands for the one that the wheel is developed on.
    other_version: str = ""
    # The lock of a TensorFlow that the checkout does not pin.
    lock_file: Path | None = None

    @staticmethod
    def of_checkout(cache: Path | None = None, flavour: Flavour = CPU) -> Layout:
        root = Path(__file__).resolve().parents[2]
        return Layout(root, (cache or root / ".cache").resolve(), flavour)

    @property
    def locks(self) -> Path:
        """Holds the locks of the version developed on, and a folder for each other version."""
        return self.root / "third_party" / "tensorflow"

    @property
    def lock(self) -> Path:
        return self.lock_file or self.locks / self.other_version / f"{self.flavour.name}.lock"

    @property
    def mpich_lock(self) -> Path:
        return self.root / "third_party" / "mpi" / "mpich.lock"

    @property
    def patches(self) -> Path:
        return self.root / "tensorflow_patches" / "patches"

    @property
    def package(self) -> Path:
        return self.root / "tensorflow_patches" / "python"

    @property
    def start_file(self) -> Path:
        return self.root / "tensorflow_patches" / "start" / START_FILE

    @property
    def official(self) -> Path:
        return self.cache / "official"

    @property
    def external(self) -> Path:
        """Always in the checkout, because WORKSPACE and MODULE.bazel name it."""
        return self.root / ".cache" / "external"

    @property
    def scratch(self) -> Path:
        return self.cache / "tmp"

    @property
    def logs(self) -> Path:
        return self.cache / "logs"
