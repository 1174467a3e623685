"""All `TF_MPI_*` parameters; docs/parameters.md is printed from this table."""

from __future__ import annotations

from tensorflow.mpi.config.parameter import DEVICE_TRANSPORTS, EXTRAS, SPARSE_MODES, Parameter

PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        Parameter(
            "TF_MPI_ENABLE",
            "choice",
            "",
            "Averages gradients over MPI ranks. Unset: if a launcher (mpirun, srun) started more "
            "than one rank. 0: never; TensorFlow behaves like stock TensorFlow. 1: always, even "
            "with one rank. Ranks of a job may have different values, but either all of them "
            "average or none.",
            choices=("", "0", "1"),
            ranks="own",
        ),
        Parameter(
            "TF_MPI_LOG_LEVEL",
            "choice",
            "info",
            "What is printed to stderr. warning: only lines that need attention. info: also one "
            "line at the start, on rank 0. debug: also what each rank registers, names and "
            "synchronizes.",
            choices=("warning", "info", "debug"),
            ranks="own",
        ),
        Parameter(
            "TF_MPI_FUSION_THRESHOLD",
            "bytes",
            "4m",
            "The maximum size of the buffer in which small gradients are sent together. Gradients "
            "of 256 KB and more are sent alone. 0: every gradient is sent alone.",
            high=2**30,
        ),
        Parameter(
            "TF_MPI_SPARSE",
            "choice",
            "auto",
            "How sparse gradients, such as those of an embedding, are averaged. gather: all ranks' "
            "rows are gathered, with their indices. dense: the whole gradient is reduced, "
            "including rows of zeros, which needs memory of the table's size. auto: for each "
            "gradient and step, the one that moves fewer bytes. If the result of an optimizer or "
            "a clip depends on duplicate rows, as in Keras 3's Adam, rows are always gathered.",
            choices=SPARSE_MODES,
        ),
        Parameter(
            "TF_MPI_EXTRAS",
            "extras",
            "all",
            "Optimizations that only make steps faster; averages are the same with all or none. "
            + " ".join(f"{name}: {what}." for name, what in EXTRAS.items()),
        ),
        Parameter(
            "TF_MPI_STALL_WARNING",
            "seconds",
            "60",
            "When some ranks have waited this long for a tensor, it is reported together with the "
            "missing ranks, and again each time this interval passes; so are ranks that wait for "
            "others at the start and at the end. At the start the first report comes after at most "
            "10 s. 0: never.",
            ranks="own",
        ),
        Parameter(
            "TF_MPI_STALL_TIMEOUT",
            "seconds",
            "1800",
            "When some ranks have waited this long for a tensor, all ranks get an error. Ranks "
            "that have waited this long at the start or at the end stop, and with them the job; "
            "at the end, they keep waiting for ranks of their node whose processes are busy, and "
            "for a busy rank 0. 0: they wait forever. A data transfer that all ranks have begun "
            "fails after the same time, but after at most 300 s: a peer has died, or the network "
            "is down. Ranks that wait for one another, so that none can continue, end with an "
            "error that says what each waits for: immediately if that is certain, otherwise when "
            "they have done nothing else for 3 s or for 1/600 of this time, whichever is longer.",
            low=1,
            or_zero=True,
            ranks="own",
        ),
        Parameter(
            "TF_MPI_FAULT",
            "choice",
            "abort",
            "What happens if a rank dies. abort: all ranks end. shrink: in custom training loops "
            "the remaining ranks continue with their current state, and average over these; "
            "tf.mpi.rank() and tf.mpi.size() change accordingly, and no checkpoint is read. This "
            "needs mpirun --with-ft ulfm of Open MPI 5, and costs one more message and copy per "
            "average. In fit, and if tf.mpi.shard has split data, a death still ends the job.",
            choices=("abort", "shrink"),
        ),
        Parameter(
            "TF_MPI_SAVE_ON_SIGTERM",
            "folder",
            "",
            "If a rank receives SIGTERM in fit, all ranks finish their step, rank 0 saves weights "
            "and optimizer in this folder, as model.weights.h5 (for tf_keras, as model), which "
            "load_weights reads, and then all ranks end by SIGTERM. A second SIGTERM, or one "
            "outside fit, ends the rank immediately: only the script can save the state of a "
            "custom loop. Unset: SIGTERM ends the rank immediately. Costs one message per step.",
        ),
        Parameter(
            "TF_MPI_CHECK",
            "steps",
            "auto",
            "The ranks compare the variables that they train together, which must be bitwise "
            "equal. If a rank has assigned to a variable on its own, or its memory or a core is "
            "faulty, an error names it. A number: all variables, every so many steps. auto: every "
            "100 steps, as many bytes as cost 0.3 % of the time, one part after another; for most "
            "models that is everything. off: never.",
            low=1,
            high=1_000_000,
        ),
        Parameter(
            "TF_MPI_SYNC_BATCHNORM",
            "choice",
            "auto",
            "Which moments Keras's batch normalization uses if each rank has part of a batch. "
            "auto: those of the whole batch, over all ranks, for one exchange per layer and "
            "direction; but those of each rank's own batch with TF_MPI_SHARD=off, in a Session, "
            "and on GPUs whose averages pass through host memory. 1: those of the whole batch "
            "there, too. 0: those of each rank's part.",
            choices=("auto", "0", "1"),
        ),
        Parameter(
            "TF_MPI_SHARD",
            "choice",
            "auto",
            "Who splits the data among the ranks. auto: Keras's fit, evaluate and predict do, so "
            "pass all data on every rank. off: the script does. dataset: like auto, and every "
            "dataset that the script iterates itself is split, too.",
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
            "Which ranks write the output of TensorFlow and Keras: checkpoints, models, event "
            "files, logs, progress bars. rank0: only rank 0; a save on another rank returns once "
            "rank 0's file exists. Files that the script opens itself exist once, with the content "
            "that one process would give them. all: every rank writes all of these; give each its "
            "own folder.",
            choices=("rank0", "all"),
        ),
        Parameter(
            "TF_MPI_COMPAT",
            "choice",
            "",
            "What `import horovod` and `import ddl` (IBM's DDL) find. Unset: an installed package "
            "of that name, otherwise tensorflow.mpi's implementation of its API. 1: always that "
            "implementation. 0: an installed package, or nothing. After hvd.init() the script is "
            "responsible for averaging, and for data and files, as with TF_MPI_SHARD=off and "
            "TF_MPI_IO=all.",
            choices=("", "0", "1"),
        ),
        Parameter(
            "TF_MPI_TIMELINE",
            "output",
            "",
            "At the end rank 0 writes a trace of all ranks to this file, for ui.perfetto.dev or "
            "chrome://tracing: when each gradient was submitted, waited for, packed, reduced, "
            "unpacked and applied, and when ranks waited for input; the last 262144 events of each "
            "rank. If ranks do not end together, each writes its own file, such as "
            "trace.rank3.json.",
            ranks="rank 0",
        ),
        Parameter(
            "TF_MPI_STATS",
            "choice",
            "0",
            "1: at the end rank 0 prints the cost of communication (operations, bytes, fused "
            "sizes, exposed and hidden time, and the rank that the others waited for) and the cost "
            "of input on each rank (samples made by its pipelines and used, the wait for them, "
            "bytes read).",
            choices=("0", "1"),
            ranks="rank 0",
        ),
        Parameter(
            "TF_MPI_TOPOLOGY",
            "topology",
            "auto",
            "Which ranks share a node: they average through shared memory, and each part of a "
            "gradient leaves the node once. auto: as the launcher says. flat: none; all data "
            "is sent through MPI. 2x4: two nodes of four ranks each, in rank order; ranks of one "
            "node must actually share memory. If GPUs average with NCCL, such a shape also limits "
            "NCCL to the nodes, with MPI between them; otherwise NCCL spans all ranks.",
        ),
        Parameter(
            "TF_MPI_COMPRESSION",
            "choice",
            "none",
            "Rounds averages of float32 to 16 bits between nodes: gradients, and the averages that "
            "a script asks for. This halves the bytes, but averages no longer match those of one "
            "process up to float32 rounding. Sums and other types are not rounded. Nothing is "
            "rounded inside a node, or if nodes have different numbers of ranks. NCCL does not "
            "round, so it is then used inside the nodes only, with MPI between them.",
            choices=("none", "fp16", "bf16"),
        ),
        Parameter(
            "TF_MPI_GPU_TRANSPORT",
            "library",
            "auto",
            "How gradients on GPUs are averaged. auto: by NCCL if each rank has its own GPU; on "
            "the GPU, by CUDA IPC, if all ranks share one; by MPI, from GPU to GPU, if the MPI "
            "library reports that it is CUDA-aware; otherwise staged through host memory. mpi: by "
            "MPI if it is CUDA-aware, otherwise staged. nccl: by NCCL, or an error that says why "
            "not (ranks that share a GPU need NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL 2.30). ipc: "
            "on the GPU that all ranks share, or an error. staged: always staged. A path: like "
            "nccl, with that NCCL library instead of the one installed by pip or found by the "
            "linker.",
            choices=DEVICE_TRANSPORTS,
        ),
        Parameter(
            "TF_MPI_LIBRARY",
            "library",
            "auto",
            "Which MPI library a rank loads. openmpi: libmpi.so.40. mpich: libmpi.so.12, also of "
            "Intel MPI, MVAPICH and Cray MPICH. abi: libmpi_abi.so.1, the standard ABI of MPI 5. "
            "debian: libmpich.so.12, Debian's and Ubuntu's MPICH. auto: the one that is already "
            "loaded in the process (as by mpi4py), otherwise the one that belongs to the launcher. "
            "It is searched for on LD_LIBRARY_PATH, next to the launcher, in Python's environment, "
            "and where the variables of MPI libraries, such as I_MPI_ROOT, point. A path: a "
            "transport library that you have built, which loads the MPI library that it is linked "
            "with.",
            choices=("auto", "openmpi", "mpich", "abi", "debian"),
            ranks="own",
        ),
    )
}

# Names from earlier versions that are still read, and their replacements.
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
# Old names with their own type, which cover only part of the new parameter.
OLD_PARTS = {
    parameter.name: parameter
    for parameter in (
        Parameter("TF_MPI_COLLECTIVE_TIMEOUT", "seconds", "", ""),
        Parameter("TF_MPI_DEADLOCK_TIMEOUT", "seconds", "", ""),
        Parameter("TF_MPI_NCCL_LIBRARY", "path", "", ""),
        Parameter("TF_MPI_SCALE_LR", "choice", "none", "", choices=("none", "linear", "sqrt")),
    )
}
