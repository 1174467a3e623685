"""Stock TensorFlow serves what ranks have trained and saved, without an extra step.

There is no package of TensorFlow Serving here; it loads what tf.saved_model.load does.
"""

from __future__ import annotations

import numpy as np
import pytest
from compare import decode


@pytest.mark.full
def test_saved_models_answer_in_stock_tensorflow(launch, scripts, stock_python, tmp_path):
    ranks = launch(scripts / "train_to_serve.py", np=2, args=[tmp_path]).check().results
    served = launch([stock_python, scripts / "serve_in_stock.py"], np=0, args=[tmp_path]).check()
    for name in ("v1", "keras"):
        answers = decode(served.results[0][name])
        assert answers.shape == (2, 1) and np.abs(answers).max() > 0.5
        for found in ranks:
            assert np.allclose(decode(found[name]), answers, atol=1e-6), name
