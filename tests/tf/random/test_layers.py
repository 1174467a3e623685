"""Keras's layers, with and without randomness: N ranks train them like one process."""

from __future__ import annotations

from typing import Any

import pytest
from compare import assert_close

from installed import needs_compiled_steps
from launch import launch
from reference import reference
from tiers import full

KINDS: tuple[tuple[str, ...], ...] = ((), ("tf_keras",))
QUICK = ("SpatialDropout2D", "RandomRotation", "LSTM")


@pytest.mark.parametrize(
    ("ranks", "args"),
    [
        (2, QUICK),
        *(full(ranks, (third, *kind)) for ranks in (2, 3) for third in "012" for kind in KINDS),
        *(
            pytest.param(ranks, (third, "jit"), marks=[pytest.mark.full, needs_compiled_steps])
            for ranks in (2, 3)
            for third in "012"
        ),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_layers_train_as_in_one_process(scripts, ranks: int, args: tuple[str, ...]) -> None:
    (one,) = reference(scripts / "layers.py", args=args, timeout=400)
    run = launch(
        scripts / "layers.py", np=ranks, args=args, timeout=400, pooled=args == QUICK
    ).check()
    far: dict[str, Any] = {}
    for name, expected in one.items():
        for rank, result in enumerate(run.results):
            if "error" in expected or "error" in result[name]:
                if expected != result[name]:
                    far[name] = rank, expected.get("error"), result[name].get("error")
                continue
            try:
                assert_close(result[name], expected, 1e-5)
            except AssertionError as error:
                far[name] = rank, str(error)[:200]
    assert not far, far
