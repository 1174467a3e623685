"""TensorFlow Probability's regression: a layer of distributions, the negative log likelihood."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras
from report import done

tfd = tfp.distributions
tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
x = drawn.uniform(-20, 60, size=(150, 1)).astype(np.float32)
y = (0.125 * x * (1 + np.sin(x)) + drawn.normal(size=x.shape) * (0.3 + (x / 40) ** 2)).astype("f4")

model = tf_keras.Sequential(
    [
        tf_keras.layers.Dense(1 + 1),
        tfp.layers.DistributionLambda(
            lambda t: tfd.Normal(loc=t[..., :1], scale=1e-3 + tf.math.softplus(0.05 * t[..., 1:]))
        ),
    ]
)
model.compile(
    optimizer=tf_keras.optimizers.Adam(learning_rate=0.05),
    loss=lambda y, distribution: -distribution.log_prob(y),
)
history = model.fit(x, y, epochs=10, verbose=0)
mean = model(x).mean()
done(history=history.history, weights=model.get_weights(), mean=mean.numpy())
