"""All `TF_MPI_*` parameters: the table from which docs/parameters.md is printed."""

from __future__ import annotations

from tensorflow.mpi.config.parameter import DEVICE_TRANSPORTS, EXTRAS, SPARSE_MODES, Parameter

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
            "the end, ranks whose processes are at work are waited for. 0: they wait for ever. A "
            "data transfer that all ranks have begun is an error after as long, and after 300 s at "
            "the latest: a peer has died, or the network is down. Ranks that wait for one another, "
            "so that none can go on, end with an error that says what each waits for: at once "
            "where that is certain, else when they have done nothing else for 3 s, or for a 600th "
            "of this, if that is more.",
            low=1,
            or_zero=True,
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
            "auto",
            "By which moments Keras's batch normalization normalizes where ranks have parts of a "
            "batch. auto: by the whole batch's, over all ranks, for one exchange per layer and "
            "direction; by those of each rank's own batch with TF_MPI_SHARD=off, and on GPUs "
            "whose averages pass through the hosts. 1: by the whole batch's there, too. 0: by "
            "those of each rank's part.",
            choices=("auto", "0", "1"),
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
            "rank; the global batch is N times larger, and an epoch has N times fewer steps. "
            "per-rank:linear also multiplies the learning rate in fit by N, per-rank:sqrt by its "
            "square root.",
            choices=("global", "per-rank", "per-rank:linear", "per-rank:sqrt"),
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
            "TF_MPI_COMPAT",
            "choice",
            "",
            "What `import horovod` and `import ddl`, IBM's DDL, find. Unset: a package of that "
            "name that is installed, else its API as tensorflow.mpi does it. 1: that, in any case. "
            "0: a package that is installed, or nothing. With hvd.init() the averages become the "
            "script's affair, as with TF_MPI_SHARD=off and TF_MPI_IO=all.",
            choices=("", "0", "1"),
        ),
        Parameter(
            "TF_MPI_TIMELINE",
            "output",
            "",
            "Rank 0 writes a trace of all ranks to this file at the end, for ui.perfetto.dev or "
            "chrome://tracing: when each gradient was handed in, waited for, packed, reduced, "
            "unpacked and applied, and when a batch of input was waited for; of each rank the "
            "last 262144 events. Of ranks that do not end together each writes its own, as "
            "trace.rank3.json.",
            ranks="rank 0",
        ),
        Parameter(
            "TF_MPI_STATS",
            "choice",
            "0",
            "1: at the end rank 0 prints what communication cost: operations, bytes, fused sizes, "
            "time exposed and hidden, and the rank that the others waited for; and what input cost "
            "each rank: samples made by its pipelines and used, the wait for them, bytes read.",
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
            "node must really share memory. Where GPUs average by NCCL, such a shape also keeps it "
            "inside the nodes, and MPI carries what leaves them; else NCCL spans all ranks.",
        ),
        Parameter(
            "TF_MPI_COMPRESSION",
            "choice",
            "none",
            "Rounds float32 gradients that travel between nodes to 16 bits: half the bytes, for "
            "averages that are no longer those of one process to rounding. Inside a node nothing "
            "is rounded, nor where nodes have different numbers of ranks. NCCL rounds nothing: it "
            "then stays inside the nodes, and MPI carries what leaves them.",
            choices=("none", "fp16", "bf16"),
        ),
        Parameter(
            "TF_MPI_GPU_TRANSPORT",
            "library",
            "auto",
            "How gradients on GPUs are averaged. auto: by NCCL if each rank has a GPU of its own; "
            "on the GPU, by CUDA IPC, if all ranks share one; by MPI, from GPU to GPU, if the MPI "
            "library says that it is CUDA-aware; else staged through the hosts. mpi: by MPI, if "
            "it says so, else staged. nccl: by NCCL, or an error that says why not (ranks that "
            "share a GPU need NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL 2.30). ipc: on the GPU that "
            "all share, or an error. staged: always staged. A path: as nccl, by that NCCL library "
            "in place of the one that pip has brought, or that the linker finds.",
            choices=DEVICE_TRANSPORTS,
        ),
        Parameter(
            "TF_MPI_LIBRARY",
            "library",
            "auto",
            "Which MPI library a rank loads. openmpi: libmpi.so.40. mpich: libmpi.so.12, which is "
            "also Intel's, MVAPICH's and Cray's. abi: libmpi_abi.so.1, of the standard ABI of MPI "
            "5. debian: libmpich.so.12, Debian's and Ubuntu's MPICH. auto: the one that is already "
            "in the process (as mpi4py's), else the one that belongs to the launcher. It is looked "
            "for on LD_LIBRARY_PATH, beside the launcher, in Python's environment, and where MPIs' "
            "own variables, as I_MPI_ROOT, point. A path: a transport library of your own build, "
            "which brings the MPI library that it is linked with.",
            choices=("auto", "openmpi", "mpich", "abi", "debian"),
            ranks="own",
        ),
    )
}

# Names of earlier versions, still read in this one, and what has taken their place.
OLD_NAMES = {
    "TF_MPI_COLLECTIVE_TIMEOUT": "TF_MPI_STALL_TIMEOUT",
    "TF_MPI_DDL": "TF_MPI_COMPAT",
    "TF_MPI_DEADLOCK_TIMEOUT": "TF_MPI_STALL_TIMEOUT",
    "TF_MPI_HOROVOD": "TF_MPI_COMPAT",
    "TF_MPI_NCCL_LIBRARY": "TF_MPI_GPU_TRANSPORT",
    "TF_MPI_SCALE_LR": "TF_MPI_BATCH",
    "TF_MPI_TRANSPORT": "TF_MPI_GPU_TRANSPORT",
    "TF_MPI_TRANSPORT_LIBRARY": "TF_MPI_LIBRARY",
}
# Those of a type of their own, which say only a part of what their new name does.
OLD_PARTS = {
    parameter.name: parameter
    for parameter in (
        Parameter("TF_MPI_COLLECTIVE_TIMEOUT", "seconds", "", ""),
        Parameter("TF_MPI_DEADLOCK_TIMEOUT", "seconds", "", ""),
        Parameter("TF_MPI_NCCL_LIBRARY", "path", "", ""),
        Parameter("TF_MPI_SCALE_LR", "choice", "none", "", choices=("none", "linear", "sqrt")),
    )
}
