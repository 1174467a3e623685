"""Attributes replaced only in tf_keras, and in tensorflow.python.keras."""

from __future__ import annotations

import functools

from tensorflow.mpi._src.average import distinct, shares
from tensorflow.mpi._src.data import dataset_shard
from tensorflow.mpi._src.files import keras_files
from tensorflow.mpi._src.global_batch import losses
from tensorflow.mpi._src.interpose.replacement_table import How, Row
from tensorflow.mpi._src.keras import fit, learning_rate, optimizers
from tensorflow.mpi._src.replaced.when import FILES, LOOPS, OTHER_FILES, RATE
from tensorflow.mpi._src.tf_keras import data, training

_FIT, _DECISIONS = "tf/keras/test_keras_fit.py", "tf/keras/test_keras_decisions.py"
_OPTIMIZERS, _SPARSE = "tf/keras/test_keras_optimizers.py", "tf/kernels/test_sparse.py"
_SESSIONS, _FILES = "tf/tf_keras/test_sessions.py", "tf/files/test_files.py"
_BATCH, _RATE = "tf/global_batch/test_whole_batch.py", "tf/data/test_shard.py"
_PYTHON = "tf/data/test_python_batches.py"

_HANDLER = "tf_keras.src.engine.data_adapter:DataHandler"
_NORM = "tf_keras.src.layers.normalization.batch_normalization:BatchNormalizationBase"
_LEGACY = (
    "{tf_keras.src.optimizers.legacy.optimizer_v2,"
    "tensorflow.python.keras.optimizer_v2.optimizer_v2}"
)

# fmt: off
TF_KERAS = (
    # Data
    Row(f"{_HANDLER}.__init__", How.WRAP, data.on_part,
        "each rank gets its part of each batch", _FIT),
    Row("tf_keras.src.engine.data_adapter:KerasSequenceAdapter.__init__", How.WRAP, data.watching,
        "each rank computes only every N-th batch", _PYTHON),
    Row(f"{_HANDLER}._configure_dataset_and_inferred_steps", How.WRAP, data.configured,
        "each rank gets its part of each batch", _FIT),
    Row(f"{_HANDLER}._infer_steps", How.WRAP, data.inferred,
        "a part may have a different number of batches", _FIT),
    Row("tf_keras.src.{engine.base_preprocessing_layer:PreprocessingLayer,"
        "layers.preprocessing.preprocessing_stage:PreprocessingStage,"
        "layers.preprocessing.preprocessing_stage:FunctionalPreprocessingStage,"
        "utils.feature_space:FeatureSpace}.adapt", How.WRAP, dataset_shard.reads_all_data,
        "a layer adapts to all of the data", _RATE, LOOPS),
    Row("tf_keras.src.engine.data_adapter:single_batch_iterator", How.WRAP,
        dataset_shard.reads_all_data, "a batch is used as the script passes it", _RATE, LOOPS),
    Row("tf_keras.src.engine.training_utils_v1:get_iterator", How.WRAP,
        dataset_shard.reads_all_data, "its loops do not divide data", _SESSIONS, LOOPS),
    *(Row(f"{module}:Model.fit", How.BEFORE,
          functools.partial(training.log_full_data, module),
          "rank 0 warns that data is not divided", _SESSIONS)
      for module in ("tf_keras.src.engine.training_v1", "tensorflow.python.keras.engine.training",
                     "tensorflow.python.keras.engine.training_v1")),
    Row("tf_keras.src.utils.steps_per_execution_tuning:StepsPerExecutionTuner.start", How.WRAP,
        training.not_tuning, "all ranks make the same calls of a step",
        "tf/keras/test_keras_calls.py"),
    # Optimizers
    Row("tf_keras.src.optimizers.optimizer:_BaseOptimizer.apply_gradients", How.SUBCLASSES,
        optimizers.averaging_tf_keras, "gradients are averaged when an update begins",
        _OPTIMIZERS),
    Row(f"{_LEGACY}:OptimizerV2.apply_gradients", How.SUBCLASSES,
        optimizers.averaging_tf_keras, "gradients are averaged when an update begins",
        _OPTIMIZERS),
    Row("tf_keras.src.mixed_precision.loss_scale_optimizer:"
        "{LossScaleOptimizer,LossScaleOptimizerV3}.get_scaled_loss", How.WRAP,
        shares.noting_scaled, "a scaled loss starts its gradient at the part's share",
        "tf/average/test_taken.py"),
    Row("tf_keras.src.optimizers.optimizer:_BaseOptimizer._deduplicate_sparse_grad", How.WRAP,
        distinct.unless_gradient_distinct, "averaged rows have no duplicates", _SPARSE),
    Row(f"{_LEGACY}:_deduplicate_indexed_slices", How.WRAP,
        distinct.unless_distinct, "averaged rows have no duplicates", _SPARSE),
    Row("tf_keras.src.optimizers.optimizer:_BaseOptimizer.learning_rate", How.WRAP,
        learning_rate.scaling, "updates use the scaled learning rate", _RATE, RATE),
    Row(f"{_LEGACY}:OptimizerV2._decayed_lr", How.WRAP,
        learning_rate.scaling, "updates use the scaled learning rate", _RATE, RATE),
    # Losses, metrics, layers
    Row("tf_keras.src.losses:Loss.__call__", How.SUBCLASSES,
        functools.partial(losses.on_part, training.KERAS),
        "the average of the parts' losses is the batch's", _BATCH),
    Row("tf_keras.src.engine.training:Model._validate_and_get_metrics_result", How.SUBCLASSES,
        fit.over_ranks, "an epoch's logs cover the data of all ranks", _DECISIONS),
    Row(f"{_NORM}._moments", How.WRAP, training.moments,
        "the moments are those of the whole batch", _BATCH),
    Row(f"{_NORM}._fused_batch_norm", How.WRAP, training.fused,
        "the moments are those of the whole batch", _BATCH),
    # Files and messages
    Row("tf_keras.src.utils.layer_utils:io_utils", How.WRAP, keras_files.printing_summaries,
        "model.summary() prints on every rank", "tf/internals/test_replaced.py",
        OTHER_FILES),
    Row("tf_keras.src.distribute.worker_training_state:WorkerTrainingState.delete_backup",
        How.WRAP, keras_files.removing_tf_keras_backup, "only rank 0 removes it", _FILES, FILES),
)
