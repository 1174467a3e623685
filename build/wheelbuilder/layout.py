"""Where things are in the checkout and in its cache, and what the wheel is called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Our part of the version: 2.21.0+mpi.1.cpu. Raised with every release on the same TensorFlow.
RELEASE = "mpi.1"
# The name of our wheels, whichever official one they are made from: what other packages ask for.
DISTRIBUTION = "tensorflow"
# Where everything of ours goes in the wheel, but for what Python's `site` reads at every start.
PACKAGE = "tensorflow/mpi"
START_FILE = "tensorflow_mpi.pth"
LIBRARY_DIR = f"{PACKAGE}/lib"
BUILD_INFO = f"{PACKAGE}/_build_info.py"

# The official libraries that ours is linked with.
TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


@dataclass(frozen=True)
class Flavour:
    """One of TensorFlow's official wheels, and how ours that is made from it is told apart."""

    name: str
    # The official wheel's distribution, as wheels and dist-info directories spell it.
    official: str
    # The end of our version. The wheel for GPUs runs everywhere, so it sorts as the newer one.
    label: str
    megabytes: int

    @property
    def release(self) -> str:
        """What our version has after the official one's and a +."""
        return f"{RELEASE}.{self.label}"


CPU = Flavour("cpu", "tensorflow_cpu", "cpu", 270)
GPU = Flavour("gpu", "tensorflow", "cuda", 570)
FLAVOURS = (CPU, GPU)


@dataclass(frozen=True)
class Library:
    """A library that Bazel builds: its target, and where it looks for what it needs."""

    target: str
    runpath: str
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.target.rpartition(":")[2]

    @property
    def output(self) -> str:
        """Its path below bazel-bin."""
        return self.target.removeprefix("//").replace(":", "/")


# One transport for each ABI of MPI libraries, and for MPICH's by Debian's name.
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
    # A TensorFlow besides the one that the wheel is developed on, which is the empty string.
    other_version: str = ""

    @staticmethod
    def of_checkout(
        cache: Path | None = None, flavour: Flavour = CPU, other_version: str = ""
    ) -> Layout:
        root = Path(__file__).resolve().parents[2]
        return Layout(root, (cache or root / ".cache").resolve(), flavour, other_version)

    @property
    def locks(self) -> Path:
        """The locks of the version that the wheel is developed on; others have folders in it."""
        return self.root / "third_party" / "tensorflow"

    @property
    def lock(self) -> Path:
        return self.locks / self.other_version / f"{self.flavour.name}.lock"

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
        """Always in the checkout: WORKSPACE and MODULE.bazel name it."""
        return self.root / ".cache" / "external"

    @property
    def scratch(self) -> Path:
        return self.cache / "tmp"

    @property
    def logs(self) -> Path:
        return self.cache / "logs"
