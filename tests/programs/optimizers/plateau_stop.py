import keras
import numpy as np
from report import done

keras.utils.set_random_seed(13)
rng = np.random.default_rng(7)
X = rng.normal(size=(120, 6)).astype("float32")
Y = (X[:, :1] * X[:, 1:2] + 0.1 * rng.normal(size=(120, 1))).astype("float32")
rates = []


class Rates(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rates.append(float(self.model.optimizer.learning_rate))
        logs["gap"] = logs["val_loss"] - logs["loss"]


m = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(16, "tanh"),
     keras.layers.Dense(1)]
)  # fmt: skip
m.compile(keras.optimizers.SGD(0.3), "mae", metrics=["mse"])
calls = [
    Rates(),
    keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=0.01),
    keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.9 if epoch > 2 else 1)),
    keras.callbacks.TerminateOnNaN(),
]
h = m.fit(X, Y, batch_size=17, epochs=12, validation_split=0.25, callbacks=calls, verbose=0)
done(m, h, rates=rates, e=m.evaluate(X, Y, batch_size=50, verbose=0, return_dict=True))
