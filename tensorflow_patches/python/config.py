"""Every `TF_MPI_*` variable and every launcher's variable: the one file that reads the environment.

Each parameter has its name, type, default, range and a sentence of help here; the documentation
(`docs/parameters.md`) and `python -m tensorflow.mpi config` are printed from it, and a value
outside its range is refused with the accepted ones. Imported while TensorFlow is being imported, so
it imports nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Kind = Literal[
    "choice", "bytes", "seconds", "steps", "path", "output", "folder", "topology", "extras"
]
# Whether ranks may have different values: no, and the start compares them; rank 0's counts on all;
# each rank has its own.
Ranks = Literal["same", "rank 0", "own"]
_RANKS = {
    "same": "The same on all ranks.",
    "rank 0": "Rank 0's counts.",
    "own": "Each rank has its own.",
}

DEVICE_TRANSPORTS = ("auto", "mpi", "nccl")  # in the order of core/device/choice.h
SPARSE_MODES = ("auto", "gather", "dense")  # in the order of glue/kernels/sparse_average.h
# What only makes steps faster: name -> what it does. As in glue/runtime/extras.cc.
EXTRAS = {
    "kept_memory": "tensors of 1 MB and more that a step has freed wait for the next step, where "
    "glibc would return them to the kernel and get them anew. With what is in use that is more "
    "than once was in use at a time by at most half of it and at most 256 MB; what nobody has used "
    "for 30 seconds goes at the next such allocation",
    "scatter_in_place": "a scatter leaves its variable readable without a copy, as Keras's "
    "Embedding reads it in each step",
    "rows_ahead": "rows of large tables that a sparse update is about to change are read ahead",
    "compiled_scatter": "in compiled steps the rows of an average are added to their variable by a "
    "call of ours",
    "divided_updates": "in a sparse optimizer op with 512 KB of averaged rows or more each row is "
    "updated by one rank of the node, and the others copy what came out; the bits are the same",
    "distinct_rows": "optimizers do not look for duplicates among averaged rows, which have none",
    "response_bypass": "ranks of one node agree on a step that repeats itself without a message",
    "streaming_stores": "where cores share no cache, as each rank finds out by timing both ways, "
    "it writes past its caches what the other ranks of its node read",
    "synchronous_updates": "what follows an average runs at once, without TensorFlow's thread pool",
}
_WIDTH = 98  # of a page
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class ConfigError(ValueError):
    """A variable has a value that is not accepted; the text says which are."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The shape of the group: `nodes` (None: as many as it takes) of `ranks_per_node` ranks each
    (0: as the launcher has it)."""

    nodes: int | None
    ranks_per_node: int


def _extras(text: str) -> tuple[str, ...] | None:
    """The names that `text` asks for, in the order of EXTRAS; None if it cannot be read."""
    if text in ("all", "none"):
        return tuple(EXTRAS) if text == "all" else ()
    words = text.split(",")
    without = all(word.startswith("-") for word in words)
    names = {word[1:] if without else word for word in words}
    if not names <= set(EXTRAS):
        return None
    return tuple(name for name in EXTRAS if (name in names) != without)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One environment variable. `default` is text, in the form a user would write it."""

    name: str
    kind: Kind
    default: str
    help: str
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 31_536_000  # a year
    ranks: Ranks = "same"

    @property
    def accepted(self) -> str:
        """The accepted values, for people."""
        if self.kind == "choice":
            return ", ".join("unset" if c == "" else c for c in self.choices)
        if self.kind == "path":
            return "the path of a file"
        if self.kind == "output":
            return "the path of a file to write, in a folder that exists"
        if self.kind == "folder":
            return "the path of a folder, which is made where there is none"
        if self.kind == "extras":
            return (
                "all, none, the names of those that are wanted, with commas between them, or names "
                f"with - before each for all but these; there are {', '.join(EXTRAS)}"
            )
        if self.kind == "topology":
            return "auto, flat, or NODESxRANKS such as 2x4"
        low, high = f"{self.low:.0f}", f"{self.high:.0f}"
        if self.kind == "steps":
            return f"auto, off, or a number of steps from {low} to {high}"
        if self.kind == "bytes":
            return f"bytes from {low} to {high}, with an optional suffix k, m or g"
        return f"seconds from {low} to {high}"

    def parse(self, text: str) -> Any:
        """Returns the value as str, int (bytes, steps), float (seconds), Topology or
        names of EXTRAS; ConfigError if not accepted."""
        value: Any = text.strip()
        if self.kind == "choice":
            if value in self.choices:
                return value
        elif self.kind == "path":
            if value == "" or os.path.exists(value):
                return value
        elif self.kind == "folder":
            return os.path.abspath(value) if value else ""
        elif self.kind == "output":
            # Rank 0's folder alone counts; whether it is there, bootstrap.py sees.
            return os.path.abspath(value) if value else ""
        elif self.kind == "extras":
            extras = _extras(value)
            if extras is not None:
                return extras
        elif self.kind == "topology":
            match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", value)
            if value == "auto":
                return Topology(None, 0)
            if value == "flat":
                return Topology(None, 1)
            if match:
                return Topology(int(match[1]), int(match[2]))
        elif self.kind == "steps":
            if value in ("auto", "off"):
                return value
            if value.isdecimal() and self.low <= int(value) <= self.high:
                return int(value)
        elif self.kind == "bytes":
            match = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", value.lower())
            if match and self.low <= int(match[1]) * _UNITS[match[2]] <= self.high:
                return int(match[1]) * _UNITS[match[2]]
        else:
            try:
                if self.low <= float(value) <= self.high:
                    return float(value)
            except ValueError:
                pass
        raise ConfigError(f"{self.name}={text!r} is not accepted; accepted: {self.accepted}")

    def shown(self, value: Any) -> str:
        """A value that `parse` returned, as text: the same for whatever means the same."""
        if isinstance(value, Topology):
            if value.nodes is None:
                return "flat" if value.ranks_per_node else "auto"
            return f"{value.nodes}x{value.ranks_per_node}"
        if isinstance(value, tuple):
            return "all" if value == tuple(EXTRAS) else ",".join(value) or "none"
        return str(value) or "unset"


PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        Parameter(
            "TF_MPI_ENABLE",
            "choice",
            "",
            "Averages gradients over MPI ranks. Unset: when a launcher (mpirun, srun) started "
            "more than one rank. 0: never; TensorFlow is stock TensorFlow. 1: always, also with "
            "one rank. The ranks of a job need not have the same, but all of them average or none.",
            choices=("", "0", "1"),
            ranks="own",
        ),
        Parameter(
            "TF_MPI_LOG_LEVEL",
            "choice",
            "info",
            "What goes to stderr. warning: only what needs attention. info: also one line at "
            "start, on rank 0. debug: also what each rank registers, names and synchronizes.",
            choices=("warning", "info", "debug"),
            ranks="own",
        ),
        Parameter(
            "TF_MPI_FUSION_THRESHOLD",
            "bytes",
            "4m",
            "Small gradients travel together in a buffer of at most this size; one of 256 KB or "
            "more travels alone. 0: every gradient travels alone.",
            high=2**30,
        ),
        Parameter(
            "TF_MPI_SPARSE",
            "choice",
            "auto",
            "How sparse gradients, as those of an embedding, are averaged. gather: all ranks' rows "
            "are gathered, with their indices. dense: the whole gradient is reduced, rows of zeros "
            "included; it takes memory of the table's size. auto: per gradient and step, what "
            "moves fewer bytes. Where an optimizer or a clip can tell rows from their sum, as "
            "Keras 3's Adam can, rows are gathered in any case.",
            choices=SPARSE_MODES,
        ),
        Parameter(
            "TF_MPI_EXTRAS",
            "extras",
            "all",
            "What only makes steps faster; averages are the same with all of these or none. "
            + " ".join(f"{name}: {what}." for name, what in EXTRAS.items()),
        ),
        Parameter(
            "TF_MPI_STALL_WARNING",
            "seconds",
            "60",
            "A tensor that some ranks have waited for this long is reported, with the ranks that "
            "are missing, and again after as long; so are ranks that wait for others at the start "
            "and at the end. A start is reported after 10 s, if this is more. 0: never.",
            ranks="own",
        ),
        Parameter(
            "TF_MPI_STALL_TIMEOUT",
            "seconds",
            "1800",
            "A tensor that some ranks have waited for this long becomes an error on all of them; "
            "ranks that have waited so at the start or at the end stop, and with them the job. At "
            "the end, ranks whose processes are at work are waited for. 0: they wait for ever.",
            ranks="own",
        ),
        Parameter(
            "TF_MPI_DEADLOCK_TIMEOUT",
            "seconds",
            "3",
            "Ranks that wait for one another, so that none can go on, end with an error that says "
            "what each waits for. Where that is not known at once: when they have done nothing "
            "else for this long. 0: only after TF_MPI_STALL_TIMEOUT.",
        ),
        Parameter(
            "TF_MPI_COLLECTIVE_TIMEOUT",
            "seconds",
            "300",
            "A data transfer that all ranks have begun and that takes this long is an error: a "
            "peer has died, or the network is down.",
            low=1,
            ranks="own",
        ),
        Parameter(
            "TF_MPI_FAULT",
            "choice",
            "abort",
            "What a rank's death does. abort: all ranks end. shrink: in loops of the script's own "
            "those that are left go on, averaging over these, with what they have; tf.mpi.rank() "
            "and tf.mpi.size() follow, and no checkpoint is read. It needs mpirun --with-ft ulfm "
            "of Open MPI 5. Averages then take a message and a copy more. In fit, and where data "
            "was split by tf.mpi.shard, a death ends the job all the same.",
            choices=("abort", "shrink"),
        ),
        Parameter(
            "TF_MPI_SAVE_ON_SIGTERM",
            "folder",
            "",
            "When a rank is told to end (SIGTERM) in fit, all ranks end their step; rank 0 saves "
            "weights and optimizer there, as model.weights.h5, or model of tf_keras, which "
            "load_weights reads; then all end by SIGTERM. A second SIGTERM, or one outside fit, "
            "ends the rank at once: what a loop of the script's own holds, only the script can "
            "save. Unset: SIGTERM ends the rank at once. It costs a message for each step.",
        ),
        Parameter(
            "TF_MPI_CHECK",
            "steps",
            "auto",
            "The ranks compare what they train together, which must be equal to the bit: a rank "
            "that has assigned to a variable on its own, or whose memory or core is faulty, is an "
            "error that names it. A number: all of it, every so many steps. auto: every 100 steps "
            "as many bytes, one part after another, as cost 0.3 % of the time; that is all of most "
            "models. off: never.",
            low=1,
            high=1_000_000,
        ),
        Parameter(
            "TF_MPI_SYNC_BATCHNORM",
            "choice",
            "0",
            "1: Keras's batch normalization uses the moments of the whole batch, over all ranks, "
            "for one exchange per layer and direction. 0: of each rank's part of it.",
            choices=("0", "1"),
        ),
        Parameter(
            "TF_MPI_SHARD",
            "choice",
            "auto",
            "Who gives each rank its part of the data. auto: Keras's fit, evaluate and predict do: "
            "give every rank all data. off: the script does. dataset: as auto, and every dataset "
            "that the script iterates itself is split, too.",
            choices=("auto", "off", "dataset"),
        ),
        Parameter(
            "TF_MPI_BATCH",
            "choice",
            "global",
            "What the script's batch size means in Keras's fit. global: the batch of all ranks "
            "together, so that N ranks train what one process trains. per-rank: the batch of each "
            "rank; the global batch is N times larger, and an epoch has N times fewer steps.",
            choices=("global", "per-rank"),
        ),
        Parameter(
            "TF_MPI_SCALE_LR",
            "choice",
            "none",
            "With TF_MPI_BATCH=per-rank: multiplies the learning rate in Keras's fit by the number "
            "of ranks (linear) or by its square root (sqrt).",
            choices=("none", "linear", "sqrt"),
        ),
        Parameter(
            "TF_MPI_IO",
            "choice",
            "rank0",
            "Who writes what TensorFlow and Keras write: checkpoints, models, event files, logs, "
            "progress bars. rank0: rank 0; a save on another rank returns once rank 0's file is "
            "there. all: every rank; give each a folder of its own. Files that the script opens "
            "itself are its own affair.",
            choices=("rank0", "all"),
        ),
        Parameter(
            "TF_MPI_HOROVOD",
            "choice",
            "",
            "What `import horovod` finds. Unset: a Horovod that is installed, else its API as "
            "tensorflow.mpi does it. 1: that, in any case. 0: a Horovod that is installed, or "
            "nothing. With hvd.init() the averages become the script's affair, as with "
            "TF_MPI_SHARD=off and TF_MPI_IO=all.",
            choices=("", "0", "1"),
        ),
        Parameter(
            "TF_MPI_DDL",
            "choice",
            "",
            "What `import ddl` finds: as TF_MPI_HOROVOD, of IBM's DDL.",
            choices=("", "0", "1"),
        ),
        Parameter(
            "TF_MPI_TIMELINE",
            "output",
            "",
            "Rank 0 writes a trace of all ranks to this file at the end, for ui.perfetto.dev or "
            "chrome://tracing: when each gradient was handed in, waited for, packed, reduced, "
            "unpacked and applied; of each rank the last 262144 events. Of ranks that do not end "
            "together each writes its own, as trace.rank3.json.",
            ranks="rank 0",
        ),
        Parameter(
            "TF_MPI_STATS",
            "choice",
            "0",
            "1: at the end rank 0 prints what communication cost: operations, bytes, fused sizes, "
            "time exposed and hidden, the rank that the others waited for.",
            choices=("0", "1"),
            ranks="rank 0",
        ),
        Parameter(
            "TF_MPI_TOPOLOGY",
            "topology",
            "auto",
            "Which ranks share a node: they average through shared memory, and each part of a "
            "gradient leaves the node once. auto: as the launcher says. flat: none; all data "
            "travels through MPI. 2x4: two nodes of four ranks each, in their order; ranks of one "
            "node must really share memory.",
        ),
        Parameter(
            "TF_MPI_COMPRESSION",
            "choice",
            "none",
            "Rounds float32 gradients that travel between nodes to 16 bits: half the bytes, for "
            "averages that are no longer those of one process to rounding. Inside a node nothing "
            "is rounded.",
            choices=("none", "fp16", "bf16"),
        ),
        Parameter(
            "TF_MPI_TRANSPORT",
            "choice",
            "auto",
            "How gradients on GPUs are averaged. auto: by NCCL if each rank has a GPU of its own "
            "(or NCCL_MULTI_RANK_GPU_ENABLE=1 is set, and NCCL is 2.30 or newer), else staged "
            "through the hosts. mpi: always staged. nccl: by NCCL, or an error that says why not.",
            choices=DEVICE_TRANSPORTS,
        ),
        Parameter(
            "TF_MPI_NCCL_LIBRARY",
            "path",
            "",
            "The NCCL library to load in place of the one that pip has brought, or that the "
            "linker finds.",
            ranks="own",
        ),
        Parameter(
            "TF_MPI_LIBRARY",
            "choice",
            "auto",
            "Which MPI library a rank loads. openmpi: libmpi.so.40. mpich: libmpi.so.12, which is "
            "also Intel's, MVAPICH's and Cray's. abi: libmpi_abi.so.1, of the standard ABI of MPI "
            "5. auto: the one that is already in the process (as mpi4py's), else the one that "
            "belongs to the launcher. It is looked for on LD_LIBRARY_PATH, beside the launcher, in "
            "Python's environment, and where MPIs' own variables, as I_MPI_ROOT, point.",
            choices=("auto", "openmpi", "mpich", "abi"),
            ranks="own",
        ),
        Parameter(
            "TF_MPI_TRANSPORT_LIBRARY",
            "path",
            "",
            "The transport library to load in place of the one that fits the MPI library.",
            ranks="own",
        ),
    )
}


def grow_gpu_memory() -> bool:
    """Has TensorFlow take a GPU's memory as it needs it; False if the user has said what it does.

    To be called before TensorFlow makes its devices.
    """
    name = "TF_FORCE_GPU_ALLOW_GROWTH"  # TensorFlow's
    if name in os.environ:
        return False
    os.environ[name] = "true"
    return True


def nccl_shares_gpus(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether NCCL's own variable lets several ranks use one GPU."""
    return environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0").strip() == "1"


def horovod_dynamic_process_sets(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Horovod's own variable lets a script add process sets after hvd.init()."""
    return environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").strip() not in ("", "0")


def get(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """The parsed value of the parameter `name`, or its default; ConfigError if not accepted."""
    parameter = PARAMETERS[name]
    return parameter.parse(environ.get(name, parameter.default))


def given(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The parameters, and TensorFlow's own that change results, that the environment holds."""
    names = {*PARAMETERS, *SWITCHES} - {"TF2_BEHAVIOR"}  # which TensorFlow sets itself
    return {name: environ[name] for name in sorted(names) if name in environ}


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError for a bad value, or for a `TF_MPI_` name that does not exist."""
    for name in environ:
        if name.startswith("TF_MPI_") and name not in PARAMETERS:
            raise ConfigError(f"{name} is no parameter; there are {', '.join(sorted(PARAMETERS))}")
    for name in PARAMETERS:
        get(name, environ)
    if get("TF_MPI_SCALE_LR", environ) != "none" and get("TF_MPI_BATCH", environ) != "per-rank":
        raise ConfigError(
            f"TF_MPI_SCALE_LR={environ['TF_MPI_SCALE_LR']!r} is not accepted with "
            "TF_MPI_BATCH=global, which keeps the batch of one process; accepted: none, or "
            "TF_MPI_BATCH=per-rank"
        )


# Variables of TensorFlow, Keras and their libraries that change what is computed, or whether it is
# averaged alike. Not threads, logs and devices: these may differ.
SWITCHES = (
    "KERAS_BACKEND", "KERAS_MAX_EPOCHS", "KERAS_MAX_STEPS_PER_EPOCH", "ONEDNN_DEFAULT_FPMATH_MODE",
    "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL", "TF2_BEHAVIOR",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_EMULATE_FP16",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_SIMULATE_GPU",
    "TF_DETERMINISTIC_OPS", "TF_DETERMINISTIC_ORDER", "TF_ENABLE_ONEDNN_OPTS",
    "TF_ENABLE_ONEDNN_SPMM", "TF_ENABLE_ZENDNN_OPTS", "TF_SET_ONEDNN_FPMATH_MODE",
    "TF_USE_DEEP_CONV2D", "TF_USE_LEGACY_KERAS", "TF_XLA_FLAGS", "XLA_FLAGS",
)  # fmt: skip
_WRITES_ONLY = re.compile(r"--(tf_)?xla_(dump|log|hlo_dump|hlo_profile)\w*(=\S*)?")


def alike(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What must be the same on all ranks, by name, as text."""
    found = {
        name: parameter.shown(get(name, environ))
        for name, parameter in PARAMETERS.items()
        if parameter.ranks == "same"
    }
    for name in SWITCHES:
        # Ranks may write their dumps to different places.
        words = _WRITES_ONLY.sub("", environ.get(name, "")).split()
        found[name] = " ".join(words) or "unset"
    return found


def keras_file(environ: Mapping[str, str] = os.environ) -> str:
    """The file in which Keras looks for its backend and the precision of its floats."""
    home = environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return os.path.join(home, "keras.json")


@dataclasses.dataclass(frozen=True)
class Launcher:
    """What started this process, as its environment tells."""

    name: str
    size: int
    rank: int
    local_size: int = 0  # ranks on this node; 0: not known
    local_rank: int = -1  # -1: not known
    abis: tuple[str, ...] = ("openmpi", "mpich", "abi")  # of MPIs that may belong to it, in order
    joins: bool = True  # False: it has started tasks that no MPI can bring together


@dataclasses.dataclass(frozen=True)
class _Variables:
    """How a launcher's ranks are known: by all variables of `marks`, and a size and a rank."""

    name: str
    size: str
    rank: str
    abis: tuple[str, ...]
    marks: tuple[str, ...] = ()
    local_size: str = ""
    local_rank: str = ""
    joins: bool = True


_ANY = ("openmpi", "mpich", "abi")
_PMI = ("mpich", "abi")  # which Open MPI does not speak
# The first that fits: a launcher may run inside of another's job.
_LAUNCHERS = (
    _Variables(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", ("openmpi",),
        (), "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    _Variables(
        "MPICH's or Intel MPI's mpiexec", "PMI_SIZE", "PMI_RANK", _PMI,
        ("MPI_LOCALNRANKS",), "MPI_LOCALNRANKS", "MPI_LOCALRANKID",
    ),
    _Variables(
        "PALS's mpiexec", "PMI_SIZE", "PMI_RANK", _PMI,
        ("PALS_RANKID",), "PMI_LOCAL_SIZE", "PMI_LOCAL_RANK",
    ),
    _Variables(
        "Slurm's srun --mpi=pmi2", "PMI_SIZE", "PMI_RANK", _PMI,
        ("SLURM_PROCID", "PMI_FD"), "", "SLURM_LOCALID",
    ),
    _Variables("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK", _PMI),
    _Variables(
        "Slurm's srun --mpi=pmix", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", _ANY,
        ("PMIX_RANK",), "", "SLURM_LOCALID",
    ),
    _Variables(
        "Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", _ANY,
        (), "", "SLURM_LOCALID", joins=False,
    ),
)  # fmt: skip


def launcher(environ: Mapping[str, str] = os.environ) -> Launcher | None:
    """The launcher that started this process, or None."""

    def number(name: str, unknown: int) -> int:
        return int(environ[name]) if environ.get(name, "").isdigit() else unknown

    for one in _LAUNCHERS:
        size, rank = number(one.size, -1), number(one.rank, -1)
        if size < 0 or rank < 0 or not all(mark in environ for mark in one.marks):
            continue
        local_size = number(one.local_size, 0)
        if "SLURM" in one.local_rank:
            local_size = _slurm_tasks_here(environ)
        return Launcher(
            one.name, size, rank, local_size, number(one.local_rank, -1), one.abis, one.joins
        )
    return None


def _slurm_tasks_here(environ: Mapping[str, str]) -> int:
    """How many of a step's tasks are on this node, from 2(x3),1 for four nodes; 0: not known."""
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else 0


def library_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Where a module, or the user, has the linker look first."""
    return [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


# What MPIs' modules and environments set to their folder.
_MPI_FOLDERS = ("I_MPI_ROOT", "MPI_HOME", "MPI_ROOT", "OPAL_PREFIX", "MPICH_DIR", "CONDA_PREFIX")


def mpi_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Where MPIs' own variables say that their libraries are."""
    roots = [environ[name] for name in _MPI_FOLDERS if environ.get(name)]
    found = [os.path.join(root, folder) for root in roots for folder in ("lib", "lib/release")]
    if environ.get("CRAY_MPICH_DIR"):  # its libmpi.so.12 is here
        found.insert(0, os.path.join(environ["CRAY_MPICH_DIR"], "lib-abi-mpich"))
    return found


_LAUNCHER_PREFIXES = (
    "OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "PALS_", "HYDI_", "MPI_LOCAL",
)  # fmt: skip


def without_launcher(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment less what launchers set, for a child that is no rank."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith("OMPI_ALLOW_") or not name.startswith(_LAUNCHER_PREFIXES)
    }


def ddl_options(environ: Mapping[str, str] = os.environ) -> str:
    """DDL's own variable: the options of ddl.init()."""
    return environ.get("DDL_OPTIONS", "")


def leave_data_to_script(environ: Any = os.environ) -> None:
    """From here on this process takes the data and the files for the script's affair."""
    environ["TF_MPI_SHARD"], environ["TF_MPI_IO"] = "off", "all"


def names_to_pass(
    names: Sequence[str], prefixes: Sequence[str], environ: Mapping[str, str] = os.environ
) -> list[str]:
    """The variables that are set of these names, and that begin so: for a launcher's -x."""
    return sorted(name for name in environ if name in names or name.startswith(tuple(prefixes)))


# Set by a rank for its children, which inherit the launcher's variables but are no ranks.
_STARTED_BY = "_TF_MPI_STARTED_BY"


_JOB = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")


def _job(environ: Mapping[str, str]) -> str:
    """What launchers tell a job's ranks by; "" if none says."""
    return " ".join(environ[name] for name in _JOB if name in environ)


def rank_of(theirs: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> int | None:
    """The rank of a process that was started with the environment `theirs`, if of our job."""
    own, other = launcher(environ), launcher(theirs)
    if own is None or other is None or not _job(environ) or _job(environ) != _job(theirs):
        return None
    return other.rank if own.size == other.size else None


def job() -> str:
    """The job of this process's launcher: the same for its ranks, another for any other; or ""."""
    return _job(os.environ)


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """This node, as its scheduler calls it."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def scheduled_nodes(environ: Mapping[str, str] = os.environ) -> str:
    """The nodes that Slurm has given to this job, in its form; "" if it does not say."""
    return environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""


def mark_started(environ: Any = os.environ) -> None:
    """Notes in the environment that this process has become a rank, and of which job."""
    environ[_STARTED_BY] = f"{os.getpid()} {_job(environ)}"


def started_by_ancestor(environ: Mapping[str, str] = os.environ) -> int | None:
    """The process that became the rank, if this one is a child of it.

    Not of a launcher that the rank has started: its ranks are a job of their own.
    """
    pid, _, job = environ.get(_STARTED_BY, "").partition(" ")
    if not pid.isdigit() or int(pid) == os.getpid() or job != _job(environ):
        return None
    return int(pid)


@dataclasses.dataclass(frozen=True)
class Gate:
    """Whether gradients are averaged in this process, and why."""

    on: bool
    reason: str
    launcher: Launcher | None


_WORD_SECONDS = 600  # a job's ranks start within that time; what is older is another job's


def is_off_elsewhere(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ranks of this job on another node were started with TF_MPI_ENABLE=0, which Open MPI's
    mpirun does not pass on. They leave word in a file (at_start.py), which is seen from here if
    the nodes share the user's home."""
    found, job = launcher(environ), environ.get("PMIX_NAMESPACE", "")
    if found is None or not job or not 0 < found.local_size < found.size:
        return False
    name = "".join(c if c.isalnum() else "-" for c in f"{job}-{os.getuid()}")
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        word = os.stat(os.path.join(cache, "tensorflow-mpi", f"{name}.off"))
    except OSError:
        return False
    return abs(time.time() - word.st_mtime) < _WORD_SECONDS


_OF_NODES = ("doctor", "--nodes")


def _looks_at_nodes(words: Sequence[str]) -> bool:
    """Whether Python was started with `words` to look at each node, whether or not others answer:
    python -m tensorflow.mpi doctor --nodes."""
    words = list(words)
    place = words.index("tensorflow.mpi") if "tensorflow.mpi" in words else 0
    return words[max(0, place - 1)] == "-m" and set(_OF_NODES) <= set(words[place:])


def gate(environ: Mapping[str, str] = os.environ) -> Gate:
    """Decides by `TF_MPI_ENABLE` and the launcher; ConfigError for any other value."""
    enable = get("TF_MPI_ENABLE", environ)
    found = launcher(environ)
    if _looks_at_nodes(sys.orig_argv):
        return Gate(False, "doctor --nodes looks at each node by itself", found)
    if enable == "0":
        return Gate(False, "TF_MPI_ENABLE=0", found)
    check(environ)
    ancestor = started_by_ancestor(environ)
    if ancestor is not None and found is not None:
        return Gate(
            False, f"this process is a child of process {ancestor}, which is the rank", found
        )
    if enable == "1":
        return Gate(True, "TF_MPI_ENABLE=1", found)
    if is_off_elsewhere(environ):
        return Gate(False, "the ranks of another node were started with TF_MPI_ENABLE=0", found)
    if found is None:
        return Gate(False, "no launcher started this process", None)
    if found.size == 1:
        return Gate(False, f"{found.name} started one rank", found)
    if not found.joins:
        return Gate(
            False,
            f"{found.name} started {found.size} tasks that know nothing of each other; for ranks "
            "that train together, srun --mpi=pmix, or --mpi=pmi2 with an MPICH",
            found,
        )
    return Gate(True, f"{found.name} started {found.size} ranks", found)


_OTHERS = (
    "Those that change what is computed must be the same on all ranks, as must the versions of "
    "Python, NumPy, Keras and this wheel, and Keras's file keras.json. The start compares them, "
    "and stops with all values and their ranks. Options of XLA that only write files may differ, "
    "and so may what is not named here: log levels, numbers of threads, places of files, "
    "TF_CONFIG. On several nodes, mpirun passes only the variables that its option -x names."
)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_on_hyphens=False)


def describe(environ: Mapping[str, str] = os.environ) -> str:
    """All parameters with their present values, defaults, ranges and help, as Markdown."""
    lines = []
    for p in PARAMETERS.values():
        default = p.default or "unset"
        lines += [f"### `{p.name}`", "", *_wrapped(p.help), ""]
        lines += [*_wrapped(f"Accepted: {p.accepted}. Default: {default}. {_RANKS[p.ranks]}"), ""]
    switches = ", ".join(f"`{name}`" for name in SWITCHES)
    lines += ["### Variables of TensorFlow and Keras", "", *_wrapped(_OTHERS), ""]
    lines += [*_wrapped(f"Compared: {switches}."), ""]
    return "\n".join(lines)
