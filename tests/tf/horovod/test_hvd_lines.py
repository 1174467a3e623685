"""The lines and errors of Horovod's functions without a group, tested in this process."""

from __future__ import annotations

import sys
import types

import pytest

from extras import load


def test_init_in_a_forked_process_is_an_error(monkeypatch):
    basics = load("tensorflow.mpi._src.horovod.basics")
    monkeypatch.setattr(basics.group, "forked_from", 1)
    with pytest.raises(RuntimeError, match=r"hvd.init\(\) was called in a process that rank 1 has"):
        basics.init()


def test_init_with_averaging_off_is_reported(monkeypatch, capsys):
    basics = load("tensorflow.mpi._src.horovod.basics")
    monkeypatch.setattr(basics.config, "launcher", lambda: types.SimpleNamespace(size=2))
    gate = types.SimpleNamespace(reason="TF_MPI_ENABLE=0")
    monkeypatch.setattr(basics.config, "gate", lambda: gate)
    basics._warn_if_off()
    line = "tensorflow.mpi: hvd.size() is 1 in each of the 2 processes, because averaging is off: "
    assert capsys.readouterr().err == f"{line}TF_MPI_ENABLE=0\n"


def test_rank_0_alone_says_a_line_after_init(capsys):
    log = load("tensorflow.mpi._src.runtime.log")
    log.group.activate(1, 2, {})
    log.group.leave_to_script()
    log.once("a line")
    assert capsys.readouterr().err == ""
    log.group.group_rank = 0
    log.once("a line")
    assert capsys.readouterr().err == "tensorflow.mpi rank 0/2: a line\n"


def test_the_end_of_a_warmup_is_printed(monkeypatch, capsys):
    callbacks = load("tensorflow.mpi._src.horovod.callbacks")
    monkeypatch.setattr(callbacks.basics, "rank", lambda: 0)
    monkeypatch.setattr(callbacks._Schedule, "on_epoch_end", lambda self, epoch, logs: None)
    warmup = object.__new__(callbacks._Warmup)
    vars(warmup).update(end_epoch=5, verbose=1, _rate=lambda: 0.4)
    for epoch in (3, 4):
        warmup.on_epoch_end(epoch)
    assert capsys.readouterr().out == ("\nEpoch 5: finished gradual learning rate warmup to 0.4.\n")


def test_a_momentum_that_cannot_be_corrected_is_reported(capsys):
    callbacks = load("tensorflow.mpi._src.horovod.callbacks")
    schedule = callbacks._Schedule(0.1, lambda epoch: 2.0)
    optimizer = types.SimpleNamespace(learning_rate=0.1, momentum=0.9)
    schedule.model = types.SimpleNamespace(optimizer=optimizer)
    schedule._adjust(1)
    assert optimizer.learning_rate == 0.2
    line = "_Schedule: momentum_correction has no effect, because the momentum of SimpleNamespace"
    assert line in capsys.readouterr().err


def test_sparse_gradients_over_several_passes_are_an_error(monkeypatch):
    aggregation = load("tensorflow.mpi._src.horovod.aggregation")

    class Slices:
        pass

    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(IndexedSlices=Slices))
    several = object.__new__(aggregation.Aggregation)
    several._reducer = types.SimpleNamespace(sparse_as_dense=False)
    words = "IndexedSlices are not supported when `backward_passes_per_step` > 1 and"
    with pytest.raises(ValueError, match=words):
        several._dense(Slices())
    assert several._dense(1.0) == 1.0


def test_a_name_that_ddl_lacks_is_an_error():
    ddl = load("tensorflow.mpi.compat.ddl")
    with pytest.raises(AttributeError, match="tensorflow.mpi's ddl has no frob; docs/ddl.md lists"):
        ddl.frob  # noqa: B018


def test_an_extension_that_horovod_lacks_is_an_error():
    util = load("tensorflow.mpi.compat.horovod.common.util")
    util.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", "")
    words = "horovod.torch is not in tensorflow.mpi's horovod; see docs/horovod.md"
    with pytest.raises(ImportError, match=words):
        util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "")
