import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(200, 8)).astype("float32")
y = (x[:, :1] * x[:, 1:2]).astype("float32")
perm = np.random.permutation(len(x))
tr, va = perm[:150], perm[150:]
m = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
m.compile(keras.optimizers.RMSprop(0.05), "mse")
hist = []
epoch = 0
best = np.inf
wait = 0
for step in range(6):
    es = keras.callbacks.EarlyStopping(
        "val_loss", patience=1, restore_best_weights=True, start_from_epoch=epoch + 1
    )
    h = m.fit(
        x[tr],
        y[tr],
        validation_data=(x[va], y[va]),
        batch_size=16,
        initial_epoch=epoch,
        epochs=epoch + 4,
        verbose=0,
        callbacks=[es],
    )
    epoch = h.epoch[-1] + 1
    hist += h.history["val_loss"]
    if min(h.history["val_loss"]) < best:
        best = min(h.history["val_loss"])
        m.save_weights("best.weights.h5")
    else:
        m.load_weights("best.weights.h5")
        wait += 1
    m.optimizer.learning_rate = float(m.optimizer.learning_rate) * (0.5 if step % 2 else 1.2)
    if step == 3:
        m.compile(
            keras.optimizers.SGD(float(m.optimizer.learning_rate), momentum=0.9, nesterov=True),
            "mae",
        )
done(m, h, hist=hist, epoch=epoch, wait=wait, lr=float(m.optimizer.learning_rate))
