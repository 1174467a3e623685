"""Ranks with different programs for the same weights are stopped; the error has both values."""

from __future__ import annotations

import pytest

from tiers import full

# What differs according to the error, and both ranks' values.
EXPECTED = {
    "activation": ("activation of layer 'dense'", "'relu' on rank 0 and 'tanh' on rank 1"),
    "l2": ("kernel_regularizer of layer 'dense'", "l2: 0.125", "l2: 0.25"),
    "units": ("units of layer 'dense'", "4 on rank 0 and 5 on rank 1"),
    "layers": ("number of layers", "on rank 0"),
    "wiring": ("the connections of the model",),
    "optimizer": ("the optimizer is SGD on rank 0 and Adam on rank 1",),
    "rate": ("learning_rate of the optimizer is 0.125 on rank 0 and 0.25 on rank 1",),
    "momentum": ("momentum of the optimizer is 0.125 on rank 0 and 0.25 on rank 1",),
    "loss": ("loss of compile() is 'mse' on rank 0 and 'mae' on rank 1",),
    "own loss": ("loss of compile() is function loss_with",),
    "code": ("loss of compile() is function",),
    "metrics": ("metrics of compile() is ['mae'] on rank 0",),
    "lambda": ("function of layer 'lambda'",),
    "epochs": ("epochs of fit() is 1 on rank 0 and 2 on rank 1",),
    "class_weight": ("class_weight of fit() is {0: 1.0, 1: 1.0} on rank 0",),
    "batch_size": (
        "batch_size of fit() is 4 on rank 0 and 8 on rank 1",
        "call tf.mpi.own_data()",
    ),
    "validation": ("validation_data of fit() is not given on rank 0 and given on rank 1",),
    "normalization": ("of layer 'normalization' is an array",),
    "vocabulary": ("vocabulary of layer 'string_lookup'", "['a', 'b']", "['b', 'a']"),
    "vectorization": ("vocabulary of layer",),
    "trainable": ("trainable of layer 'dense' is True on rank 0 and False on rank 1",),
    "names": ("the list of weight names", "dense_2"),
}


@pytest.mark.parametrize("kind", ["keras", full("tf_keras")])
def test_the_first_difference_is_named_with_both_values(launch, scripts, kind):
    run = launch(scripts / "programs.py", np=2, args=[kind], timeout=300, pooled=True).check()
    for rank in run.results:
        assert rank.pop("same") == "trained"
        assert rank.pop("own attribute") == "trained"
        assert rank.keys() == EXPECTED.keys()
        for case, words in EXPECTED.items():
            missing = [word for word in words if word not in rank[case]]
            assert not missing, (case, rank[case])
            assert "All ranks must run the same program" in rank[case]
    assert run.stderr[0].count("factor of the model is 1.0 on rank 0 and 2.0 on rank 1") == 2
    assert "factor of the model" not in run.stderr[1]


@pytest.mark.full
def test_a_difference_on_the_third_rank_is_named(launch, scripts):
    run = launch(scripts / "programs.py", np=3, args=["keras", "same", "units"]).check()
    for rank in run.results:
        assert rank["same"] == "trained"
        assert "4 on rank 0 and 5 on rank 1" in rank["units"]
