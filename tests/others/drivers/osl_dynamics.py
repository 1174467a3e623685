"""osl-dynamics' tutorial: an HMM of simulated data, whose states have covariances of their own."""

from __future__ import annotations

from osl_dynamics import simulation
from osl_dynamics.data import Data
from osl_dynamics.models.hmm import Config, Model
from osl_dynamics.utils import set_random_seed
from report import done

set_random_seed(1)
simulated = simulation.HMM_MVN(
    n_samples=1600,
    n_states=3,
    n_channels=5,
    trans_prob="sequence",
    stay_prob=0.9,
    means="zero",
    covariances="random",
)
simulated.standardize()
data = Data(simulated.time_series)
config = Config(
    n_states=3,
    n_channels=5,
    sequence_length=100,
    learn_means=False,
    learn_covariances=True,
    batch_size=8,
    learning_rate=0.01,
    n_epochs=2,
)
model = Model(config)
history = model.fit(data, verbose=0)
done(
    history=history,
    covariances=model.get_covariances(),
    trans_prob=model.get_trans_prob(),
    alpha=model.get_alpha(data, concatenate=True, verbose=0),
)
