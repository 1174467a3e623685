"""Attributes replaced in TensorFlow's Python, in addition to its patched files (patches.py)."""

from __future__ import annotations

import functools

from tensorflow.mpi._src.average import distinct, shares
from tensorflow.mpi._src.compat_v1 import gradients
from tensorflow.mpi._src.data import (
    dataset_shard,
    failures,
    iterations,
    keyed_maps,
    on_cpu,
    one_order,
)
from tensorflow.mpi._src.distribute import average_loss, strategies
from tensorflow.mpi._src.files import dataset_files, shared_calls, tensorflow_files, writes
from tensorflow.mpi._src.global_batch import gradients as batch_gradients
from tensorflow.mpi._src.global_batch import loop_losses
from tensorflow.mpi._src.gpu import gpus
from tensorflow.mpi._src.interpose.replacement_table import How, Row
from tensorflow.mpi._src.keras import summaries
from tensorflow.mpi._src.random import ops, own_rows
from tensorflow.mpi._src.replaced.when import DRAWS, FILES, GPUS, OTHER_FILES, RANK_0

_DRAWS, _SPARSE = "tf/random/test_draws.py", "tf/kernels/test_sparse.py"
_WHOLE, _NAMES = "tf/files/test_whole_files.py", "tf/files/test_names.py"
_SHARED = "tf/files/test_shared_calls.py"
_STRATEGIES = "tf/distribute/test_strategies.py"
_ORDER = "tf/data/test_one_order.py"
_BATCH = "tf/global_batch/test_whole_batch.py"

_P = "tensorflow.python"
_IO = f"{_P}.lib.io"
_STATEFUL = (
    "multinomial,parameterized_truncated_normal,random_gamma,random_poisson_v2,"
    "random_standard_normal,random_uniform,random_uniform_int,truncated_normal"
)
_STATELESS = (
    "stateless_multinomial,stateless_parameterized_truncated_normal,stateless_random_binomial,"
    "stateless_random_poisson"
)
_STATELESS_V2 = (
    "stateless_random_gamma_v3,stateless_random_normal_v2,stateless_random_uniform_full_int_v2,"
    "stateless_random_uniform_int_v2,stateless_random_uniform_v2,stateless_truncated_normal_v2"
)
# Ops whose datasets may yield their elements in any order.
_UNORDERED = (
    "parallel_batch_dataset,parallel_filter_dataset,parallel_interleave_dataset_v2,"
    "parallel_interleave_dataset_v3,parallel_interleave_dataset_v4,parallel_map_dataset,"
    "parallel_map_dataset_v2"
)
_UNORDERED_EXPERIMENTAL = (
    "legacy_parallel_interleave_dataset_v2,parallel_interleave_dataset,parse_example_dataset_v2"
)


# fmt: off
TENSORFLOW = (
    # Random ops
    Row(f"{_P}.framework.random_seed:get_seed", How.WRAP, ops.seeded,
        "an unseeded op draws the same on all ranks", _DRAWS, DRAWS),
    Row(f"{_P}.framework.random_seed:{{set_seed,set_random_seed}}", How.WRAP, ops.without_clock,
        "a seed from the clock is equal on all ranks", _DRAWS, DRAWS),
    Row(f"{_P}.eager.context:Context.{{clear_kernel_cache,_set_global_seed}}", How.AFTER,
        ops.cache_cleared, "kernels restart their random sequences", _DRAWS, DRAWS),
    Row(f"{_P}.ops.gen_random_ops:{{{_STATEFUL}}}", How.WRAP, own_rows.drawing,
        "draws one process's numbers for the rank's samples", _DRAWS, DRAWS),
    Row(f"{_P}.ops.gen_stateless_random_ops:{{{_STATELESS}}}", How.WRAP, own_rows.drawing,
        "draws one process's numbers for the rank's samples", _DRAWS, DRAWS),
    Row(f"{_P}.ops.gen_stateless_random_ops_v2:{{{_STATELESS_V2}}}", How.WRAP, own_rows.drawing,
        "draws one process's numbers for the rank's samples", _DRAWS, DRAWS),
    Row(f"{_P}.ops.gen_stateful_random_ops:stateful_random_binomial", How.WRAP,
        own_rows.drawing, "draws one process's numbers for the rank's samples", _DRAWS, DRAWS),
    Row(f"{_P}.eager.polymorphic_function.function_context:make_function_context", How.WRAP,
        own_rows.traced_per_step, "a function called in a step draws for its samples", _DRAWS,
        DRAWS),
    Row(f"{_P}.ops.stateful_random_ops:non_deterministic_ints", How.WRAP, ops.same_ints_on_ranks,
        "a generator's state is the same on all ranks", _DRAWS, DRAWS),
    Row(f"{_P}.ops.stateful_random_ops:Generator._prepare_key_counter", How.WRAP,
        own_rows.key_of_whole, "its state advances as in one process", _DRAWS, DRAWS),
    Row(f"{_P}.data.ops.map_op:_map_v2", How.WRAP, keyed_maps.mapping,
        "a parallel map draws random numbers per sample", _ORDER, DRAWS),
    Row(f"{_P}.data.ops.structured_function:StructuredFunctionWrapper.__init__", How.WRAP,
        dataset_shard.tracing, "only the functions of a part draw for its samples", _ORDER),
    Row(f"{_P}.data.ops.structured_function:StructuredFunctionWrapper.__init__", How.WRAP,
        on_cpu.traced, "functions that slice and count start faster",
        "tf/internals/test_internals.py"),
    # Order of datasets
    Row(f"{_P}.ops.gen_dataset_ops:{{{_UNORDERED}}}", How.WRAP, one_order.deterministic,
        "nondeterministic order is the same on all ranks", _ORDER),
    Row(f"{_P}.ops.gen_experimental_dataset_ops:{{{_UNORDERED_EXPERIMENTAL}}}", How.WRAP,
        one_order.deterministic, "nondeterministic order is the same on all ranks", _ORDER),
    Row(f"{_P}.ops.gen_dataset_ops:options_dataset", How.WRAP, one_order.options,
        "nondeterministic order is the same on all ranks", _ORDER),
    Row(f"{_P}.ops.{{gen_dataset_ops,gen_experimental_dataset_ops}}:pywrap_tfe", How.WRAP,
        iterations.noting, "each iteration has its own order, same on all ranks", _ORDER),
    Row(f"{_P}.data.ops.dataset_ops:DatasetV2.{{reduce,get_single_element}}", How.WRAP,
        iterations.reading, "counts as an iteration on all ranks", _ORDER),
    Row(f"{_P}.ops.gen_dataset_ops:dummy_memory_cache", How.WRAP, iterations.holding,
        "a cache has one order", _ORDER),
    Row(f"{_P}.data.ops.iterator_ops:OwnedIterator._next_internal", How.WRAP, failures.iterating,
        "reports a failed rank to the ranks that wait", _ORDER),
    # Gradients
    Row(f"{_P}.training.optimizer:_deduplicate_indexed_slices", How.WRAP,
        distinct.unless_distinct, "averaged rows have no duplicates", _SPARSE),
    Row(f"{_P}.training.optimizer:Optimizer.minimize", How.WRAP, gradients.minimizing,
        "the script does not see the gradients", _SPARSE),
    Row(f"{_P}.training.optimizer:Optimizer.compute_gradients", How.WRAP, gradients.computing,
        "gradients are averaged together, not by the tape", "tf/compat_v1/test_compat_v1.py"),
    Row(f"{_P}.training.optimizer:Optimizer.compute_gradients", How.WRAP, loop_losses.checking,
        "reports a loss that is not a per-sample mean",
        "tf/global_batch/test_loop_losses.py"),
    Row(f"{_P}.eager.backprop:GradientTape.gradient", How.WRAP, shares.taking_by_shares,
        "a scaled loss starts its gradient at the part's share", "tf/average/test_taken.py"),
    Row(f"{_P}.eager.backprop:GradientTape.gradient", How.WRAP, batch_gradients.of_whole_batch,
        "a part's sum is scaled to the whole batch", _BATCH),
    # tf.distribute
    Row(f"{_P}.distribute.one_device_strategy:{{OneDeviceStrategy,OneDeviceStrategyV1}}.__init__",
        How.WRAP, functools.partial(strategies.of_one_rank, strategies.replicas_of_one_device),
        "a rank is one device of the strategy", _STRATEGIES),
    Row(f"{_P}.distribute.mirrored_strategy:{{MirroredStrategy,MirroredStrategyV1}}.__init__",
        How.WRAP, functools.partial(strategies.of_one_rank, strategies.replicas_of_devices),
        "a rank is one device of the strategy", _STRATEGIES),
    Row(f"{_P}.distribute.central_storage_strategy:"
        "{CentralStorageStrategy,CentralStorageStrategyV1}.__init__",
        How.WRAP, functools.partial(strategies.of_one_rank, strategies.replicas_of_devices),
        "a rank is one device of the strategy", _STRATEGIES),
    Row(f"{_P}.distribute.collective_all_reduce_strategy:"
        "{CollectiveAllReduceStrategy,CollectiveAllReduceStrategyV1}.__init__",
        How.WRAP, functools.partial(strategies.of_one_rank, strategies.replicas_of_workers),
        "a rank is one worker of the strategy", _STRATEGIES),
    Row(f"{_P}.distribute.parameter_server_strategy:ParameterServerStrategyV1.__init__",
        How.WRAP, strategies.refused, "MPI ranks have no parameter servers", _STRATEGIES),
    Row(f"{_P}.distribute.parameter_server_strategy_v2:ParameterServerStrategyV2.__init__",
        How.WRAP, strategies.refused, "MPI ranks have no parameter servers", _STRATEGIES),
    Row(f"{_P}.ops.nn_impl_distribute:compute_average_loss", How.WRAP, average_loss.of_part,
        "a part's sum is divided by the whole batch", _STRATEGIES),
    # Files
    Row(f"{_P}.checkpoint.checkpoint_management:update_checkpoint_state", How.WRAP,
        tensorflow_files.checkpoint_state_on_rank_0, "only rank 0 writes it", _NAMES, FILES),
    Row(f"{_P}.checkpoint.checkpoint_management:_delete_file_if_exists", How.WRAP,
        tensorflow_files.remove_links, "rank 0 removes the files", _NAMES, OTHER_FILES),
    Row(f"{_P}.data.ops.cache_op:_cache", How.WRAP, dataset_files.own_cache,
        "only one process may write a cache", _NAMES, OTHER_FILES),
    Row(f"{_P}.data.ops.snapshot_op:_snapshot", How.WRAP, dataset_files.own_snapshot,
        "only one process may write a snapshot", _NAMES, OTHER_FILES),
    Row(f"{_P}.data.ops.save_op:_save", How.WRAP, dataset_files.saved_once,
        "only rank 0 writes it", _NAMES, FILES),
    Row(f"{_P}.data.ops.save_op:_save", How.WRAP,
        functools.partial(iterations.reading, on_rank_0=True),
        "counts as an iteration on all ranks", _ORDER),
    Row(f"{_IO}.file_io:FileIO._prewrite_check", How.WRAP, writes.checking_before_write,
        "a file that all ranks write appears when complete", _WHOLE, FILES),
    Row(f"{_IO}.file_io:{{create_dir_v2,delete_file_v2,delete_recursively_v2,rename_v2}}", How.WRAP,
        shared_calls.taken_as_done, "same as os.mkdir", _SHARED, FILES),
    Row(f"{_IO}.file_io:recursive_create_dir_v2", How.WRAP, shared_calls.making_folders,
        "a rank that is late does not remove the folder", _SHARED, FILES),
    Row(f"{_IO}.file_io:copy_v2", How.WRAP, writes.copying,
        "a file that all ranks write appears when complete", _WHOLE, FILES),
    Row(f"{_IO}.tf_record:TFRecordWriter.__init__", How.WRAP, writes.making_record_writer,
        "a file that all ranks write appears when complete", _WHOLE, FILES),
    Row(f"{_IO}.{{file_io:FileIO,tf_record:TFRecordWriter}}.flush", How.WRAP, writes.flushing,
        "a flushed file appears", _WHOLE, FILES),
    Row(f"{_IO}.{{file_io:FileIO,tf_record:TFRecordWriter}}.{{close,__exit__}}", How.WRAP,
        writes.closing, "a closed file appears", _WHOLE, FILES),
    Row(f"{_P}.ops.gen_io_ops:write_file", How.WRAP, writes.writing_file,
        "a file that all ranks write appears when complete", _WHOLE, FILES),
    # Summaries, devices
    Row(f"{_P}.ops.summary_ops_v2:write", How.WRAP, summaries.noting_part,
        "warns that a summary in a step covers a part", _BATCH, RANK_0),
    Row(f"{_P}.eager.context:Context.ensure_initialized", How.WRAP, gpus.choosing,
        "a rank uses one of its visible GPUs", "gpu/test_standin.py", GPUS),
)
