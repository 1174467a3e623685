"""Attributes replaced in Keras 3, and in the same way in tf_keras."""

from __future__ import annotations

import functools

from tensorflow.mpi._src.average import shares
from tensorflow.mpi._src.data import dataset_shard, feeds, on_cpu, predictions
from tensorflow.mpi._src.files import downloads, keras_files, saves
from tensorflow.mpi._src.global_batch import losses, metrics
from tensorflow.mpi._src.interpose.replacement_table import How, Row
from tensorflow.mpi._src.keras import (
    adapters,
    batch_logs,
    batch_norm,
    calls,
    data,
    fit,
    learning_rate,
    loop_metrics,
    on_sigterm,
    optimizers,
    program,
)
from tensorflow.mpi._src.random import by_sample
from tensorflow.mpi._src.replaced.when import (
    DRAWS,
    FILES,
    LOOPS,
    NO_COMPILED,
    OTHER_FILES,
    RATE,
    SIGTERM,
)

_FIT, _CALLS = "tf/keras/test_keras_fit.py", "tf/keras/test_keras_calls.py"
_DECISIONS, _SIGTERM = "tf/keras/test_keras_decisions.py", "tf/keras/test_sigterm.py"
_OPTIMIZERS, _RATE = "tf/keras/test_keras_optimizers.py", "tf/data/test_shard.py"
_BATCH, _PYTHON = "tf/global_batch/test_whole_batch.py", "tf/data/test_python_batches.py"
_FILES, _NAMES = "tf/files/test_files.py", "tf/files/test_names.py"

_LIST = "{keras.src.callbacks.callback_list,tf_keras.src.callbacks}:CallbackList"
_EVERY_LIST = (
    "{keras.src.callbacks.callback_list,tf_keras.src.callbacks,tensorflow.python.keras.callbacks}"
    ":CallbackList"
)
_CALLBACKS = "keras.src.callbacks"
_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer|Trainer"
_METRIC = "{keras.src.metrics.metric,tf_keras.src.metrics.base_metric}:Metric"

# fmt: off
KERAS = (
    Row("keras.src.random.seed_generator:SeedGenerator.next", How.WRAP, by_sample.next_seed,
        "a parallel map draws random numbers per sample", "tf/data/test_one_order.py", DRAWS),
    Row("keras.src.backend.tensorflow.trainer:TFEpochIterator.__init__", How.WRAP, data.on_part,
        "each rank gets its part of each batch", _FIT),
    Row("{keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter.get_tf_dataset,"
        "tf_keras.src.engine.data_adapter:TensorLikeDataAdapter.__init__}", How.WRAP,
        on_cpu.making, "functions that slice arrays start faster", _CALLS),
    Row("keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter.get_tf_dataset",
        How.WRAP, data.watching, "each rank computes only every N-th batch", _PYTHON),
    Row(f"{_TRAINER}._make_function", How.WRAP, data.made_on_part,
        "a step works on part of a batch", _FIT),
    Row(f"{_TRAINER}._maybe_symbolic_build", How.WRAP, data.built_on_part,
        "variables are created before a step on a part", _CALLS),
    Row(f"{{{_TRAINER},tf_keras.src.engine.training:Model}}.predict", How.WRAP, predictions.wrap,
        "every rank returns the whole result", _FIT),
    *(row for kind in ("fit", "evaluate", "predict") for row in (
        Row(f"{{{_TRAINER},tf_keras.src.engine.training:Model}}.{kind}", How.WRAP,
            calls.wrap(kind), "the runtime and other ranks know what runs", _CALLS),
        Row(f"{{{_TRAINER},tf_keras.src.engine.training:Model}}.{kind}", How.WRAP,
            program.wrap(kind), "all ranks run the same program", _DECISIONS),
    )),
    Row("keras.src.layers.preprocessing.{normalization:Normalization,discretization:Discretization,"
        "index_lookup:IndexLookup,text_vectorization:TextVectorization,feature_space:FeatureSpace}"
        ".adapt", How.WRAP, dataset_shard.reads_all_data,
        "a layer adapts to all of the data", _RATE, LOOPS),
    # Where it is exported: its own module is still being imported when Keras imports TensorFlow.
    Row("{keras.utils,keras._tf_keras.keras.utils,tf_keras.src.utils.dataset_utils}:split_dataset",
        How.WRAP, dataset_shard.reads_all_data, "it splits the undivided dataset", _RATE, LOOPS),
    Row(f"{_TRAINER}.make_predict_function", How.WRAP, data.built_before_predict,
        "variables are created before a step on a part", _CALLS),
    Row(f"{{{_TRAINER},tf_keras.src.engine.training:Model}}.{{train_step,test_step,predict_step}}",
        How.USE, feeds.wrap_steps, "a step works on part of a batch", _FIT),
    Row("keras.src.trainers.trainer:model_supports_jit", How.WRAP, fit.compiling_nothing,
        "this TensorFlow cannot average in compiled steps", _FIT, NO_COMPILED),
    # Optimizers
    Row("keras.src.optimizers.base_optimizer:BaseOptimizer.apply", How.SUBCLASSES,
        optimizers.averaging_lists, "gradients are averaged when an update begins", _OPTIMIZERS),
    Row("keras.src.optimizers.base_optimizer:BaseOptimizer.apply_gradients", How.SUBCLASSES,
        optimizers.averaging_pairs, "gradients are averaged when an update begins", _OPTIMIZERS),
    Row("keras.src.optimizers.base_optimizer:BaseOptimizer.scale_loss", How.SUBCLASSES,
        shares.noting_scaled, "a scaled loss starts its gradient at the part's share",
        "tf/average/test_taken.py"),
    Row("keras.src.optimizers.base_optimizer:BaseOptimizer._get_current_learning_rate", How.WRAP,
        learning_rate.scaling, "updates use the scaled learning rate", _RATE, RATE),
    Row("keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients", How.WRAP,
        optimizers.unless_averaged, "an update does not wait for the last average",
        "tf/internals/test_internals.py"),
    Row(f"{{{_TRAINER},tf_keras.src.engine.training:Model}}.train_step", How.WRAP,
        optimizers.passes_gradients_unaveraged, "gradients are averaged together, not by the tape",
        _OPTIMIZERS),
    # Losses, metrics, batch normalization
    Row("keras.src.losses.loss:Loss.__call__", How.SUBCLASSES,
        functools.partial(losses.on_part, adapters.KERAS),
        "the average of the parts' losses is the batch's", _BATCH),
    Row(f"{_METRIC}.update_state", How.CLASSES, metrics.updated,
        "its state covers the whole batch, or sums the part", _BATCH),
    Row(f"{_METRIC}.update_state", How.CLASSES, loop_metrics.updated,
        "metrics in a loop over divided data cover all ranks", _RATE),
    Row(f"{_METRIC}.result", How.CLASSES, loop_metrics.read,
        "metrics in a loop over divided data cover all ranks", _RATE),
    Row("tensorflow.python.data.ops.dataset_autograph:_tf_ag_dataset_for_stmt", How.WRAP,
        loop_metrics.in_function, "metrics in a loop over divided data cover all ranks", _RATE),
    Row("tensorflow.python.data.ops.iterator_ops:OwnedIterator._create_iterator", How.WRAP,
        loop_metrics.begun, "metrics in a loop over divided data cover all ranks", _RATE),
    Row("tensorflow.python.data.ops.iterator_ops:OwnedIterator.__next__", How.WRAP,
        loop_metrics.at_end, "metrics in a loop over divided data cover all ranks", _RATE),
    Row(f"{_METRIC}.result", How.CLASSES, metrics.returned,
        "logs are matched with their metrics", _BATCH),
    Row(f"{_METRIC}.reset_state", How.CLASSES, metrics.reset,
        "sums over ranks start over", _DECISIONS),
    Row("keras.src.layers.normalization.batch_normalization:BatchNormalization._moments",
        How.WRAP, batch_norm.over_ranks, "the moments are those of the whole batch", _DECISIONS),
    # Decisions of callbacks
    Row(f"{_EVERY_LIST}.{{on_epoch_end,on_train_batch_end,on_train_end}}", How.WRAP,
        keras_files.passing, "ends the wait for a save that rank 0 skips", _NAMES, FILES),
    Row(f"{_LIST}.on_train_begin", How.AFTER, fit.fit_begins,
        "all ranks begin fit in the same state", _DECISIONS),
    Row(f"{_LIST}.on_epoch_begin", How.WRAP, calls.noting_epochs,
        "messages about waits name the epoch", "tf/agreement/test_deadlocks.py"),
    Row(f"{_LIST}.on_train_batch_end", How.WRAP, fit.with_whole_logs("train_step"),
        "callbacks read logs of all ranks", _DECISIONS),
    Row(f"{_LIST}.on_test_batch_end", How.WRAP, fit.with_whole_logs("test_step"),
        "callbacks read logs of all ranks", _DECISIONS),
    Row("{keras.src.utils.python_utils:pythonify_logs,"
        "tf_keras.src.utils.tf_utils:sync_to_numpy_or_python_type}", How.WRAP,
        batch_logs.passing_on, "logs are exchanged when they are read", _DECISIONS),
    Row("{keras.src.callbacks.progbar_logger:ProgbarLogger._update_progbar,"
        "tf_keras.src.callbacks:ProgbarLogger._batch_update_progbar}", How.WRAP,
        batch_logs.showing_own, "a progress bar reads logs without an exchange", _DECISIONS),
    Row(f"{_LIST}.on_train_batch_end", How.AFTER, fit.batch_ends,
        "a stop on one rank stops all", _DECISIONS),
    Row(f"{_LIST}.on_epoch_end", How.AFTER, fit.epoch_ends,
        "a stop on one rank stops all", _DECISIONS),
    Row(f"{_LIST}.on_test_begin", How.BEFORE, fit.evaluation_begins,
        "all ranks evaluate the same state", _CALLS),
    Row(f"{_LIST}.on_predict_begin", How.BEFORE, fit.prediction_begins,
        "all ranks predict from the same state", _CALLS),
    Row(f"{_LIST}.{{on_test_end,on_predict_end}}", How.BEFORE, fit.call_ends,
        "a model built by its first use is synchronized", _CALLS),
    Row("keras.src.trainers.trainer:BaseTrainer|Trainer._get_metrics_result_or_logs",
        How.SUBCLASSES, fit.over_ranks, "an epoch's logs cover the data of all ranks", _DECISIONS),
    # After the exchanges of fit itself
    Row(f"{_LIST}.on_train_begin", How.AFTER, on_sigterm.begins,
        "SIGTERM ends all ranks after one step", _SIGTERM, SIGTERM),
    Row(f"{_LIST}.{{on_train_batch_end,on_epoch_end}}", How.AFTER, on_sigterm.stop_together,
        "SIGTERM ends all ranks after one step", _SIGTERM, SIGTERM),
    Row(f"{_LIST}.on_train_end", How.BEFORE, on_sigterm.last_meeting,
        "SIGTERM ends all ranks after one step", _SIGTERM, SIGTERM),
    # Files and messages
    Row("{keras,tf_keras}.src.saving.saving_api:load_weights", How.WRAP,
        keras_files.noticing_restore, "all ranks get the weights that rank 0 restores", _FILES),
    Row("{keras,tf_keras}.src.saving.saving_api:{save_model,save_weights}", How.WRAP,
        keras_files.saved_by, "only rank 0 writes it", _FILES, FILES),
    Row("keras.src.models.model:Model.export", How.WRAP, keras_files.saved_by,
        "only rank 0 writes it", _FILES, FILES),
    Row("{keras,tf_keras}.src.utils.io_utils:print_msg", How.WRAP, keras_files.nothing,
        "only rank 0 shows progress", _FILES, OTHER_FILES),
    Row("{keras.src.utils.file_utils,tf_keras.src.utils.data_utils}:get_file", How.WRAP,
        downloads.taking_turns, "one rank per node downloads", _FILES),
    Row(f"{_CALLBACKS}.{{model_checkpoint,backup_and_restore}}:file_utils", How.WRAP,
        keras_files.silent_files, "only rank 0 changes files", _FILES, OTHER_FILES),
    Row("{keras.src.callbacks.backup_and_restore,tf_keras.src.callbacks}"
        ":BackupAndRestore.on_train_begin", How.WRAP, keras_files.agreeing_on_backup,
        "all ranks resume from rank 0's backup", _FILES),
    Row(f"{_CALLBACKS}.backup_and_restore:BackupAndRestore._save_model", How.WRAP,
        saves.posts_at_end, "the epoch is written after weights", _FILES, FILES),
    Row(f"{_CALLBACKS}.backup_and_restore:BackupAndRestore._save_model", How.WRAP,
        keras_files.backing_up_whole_folder, "its path covers the whole folder", _NAMES, FILES),
    Row(f"{_CALLBACKS}.backup_and_restore:BackupAndRestore.on_train_end", How.WRAP,
        keras_files.removing_backup, "only rank 0 removes it", _FILES, FILES),
    Row("{keras.src.callbacks.csv_logger,tf_keras.src.callbacks,tensorflow.python.keras.callbacks}"
        ":CSVLogger.on_train_end", How.WRAP, keras_files.closing_log,
        "the log is complete when fit returns", _FILES, FILES),
    Row("{keras.src.callbacks.csv_logger,tf_keras.src.callbacks,tensorflow.python.keras.callbacks}"
        ":CSVLogger.on_train_begin", How.WRAP, keras_files.logging_nowhere,
        "only rank 0 writes it", _FILES, OTHER_FILES),
    Row("{keras.src.callbacks.remote_monitor,tf_keras.src.callbacks,"
        "tensorflow.python.keras.callbacks}:RemoteMonitor.on_epoch_end", How.WRAP,
        keras_files.nothing, "only rank 0 posts to a server", _FILES, OTHER_FILES),
    Row("{keras.src.callbacks.tensorboard,tf_keras.src.callbacks,tf_keras.src.callbacks_v1,"
        "tensorflow.python.keras.callbacks,tensorflow.python.keras.callbacks_v1}"
        ":TensorBoard.on_train_end", How.WRAP, keras_files.closing_board,
        "the folder is complete when fit returns", _FILES, FILES),
    Row("{keras.src.callbacks.tensorboard,tf_keras.src.callbacks,tensorflow.python.keras.callbacks}"
        ":TensorBoard._configure_embeddings", How.WRAP, keras_files.nothing,
        "only rank 0 writes projector_config.pbtxt", _FILES, OTHER_FILES),
    Row(f"{_CALLBACKS}.orbax_checkpoint:OrbaxCheckpoint._save_checkpoint", How.WRAP,
        keras_files.saved_by_orbax, "only rank 0 writes it", "tf/internals/test_replaced.py",
        FILES, "keras>=3.13"),
)
