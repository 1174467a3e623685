import keras
import numpy as np
from report import done

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(130, 6)).astype("float32")
y = (x[:, :1] * 2 - x[:, 1:2] ** 2).astype("float32")


def make():
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )


m = make()
m.compile(
    keras.optimizers.Adam(
        0.01,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=5,
        gradient_accumulation_steps=3,
        global_clipnorm=0.5,
    ),
    "mse",
)
h = m.fit(
    x,
    y,
    batch_size=20,
    epochs=4,
    verbose=0,
    callbacks=[keras.callbacks.SwapEMAWeights()] if False else None,
    validation_split=0.2,
)
m2 = make()
m2.compile(keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.8), "mae")
h2 = m2.fit(
    x,
    y,
    batch_size=33,
    epochs=3,
    verbose=0,
    validation_data=(x[:31], y[:31]),
    callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
)
m2.optimizer.finalize_variable_values(m2.trainable_variables)
done(m, h, w2=m2.get_weights(), h2=h2.history)
