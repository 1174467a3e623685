import keras
import numpy as np
from report import done

keras.utils.set_random_seed(5)
rng = np.random.default_rng(0)
x = rng.normal(size=(333, 6)).astype("float32")
y = (x[:, 0] + 0.3 * rng.normal(size=333) > 1.2).astype("float32")
w = np.where(y > 0, 5.0, 1.0).astype("float32")
M = keras.metrics
m = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(8, "relu"),
        keras.layers.Dropout(0.0),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
m.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.BinaryFocalCrossentropy(),
    metrics=[
        M.AUC(name="auc"),
        M.AUC(curve="PR", name="pr"),
        M.PrecisionAtRecall(0.5, name="par"),
        M.TruePositives(name="tp"),
        M.F1Score(threshold=0.5, average="micro", name="f1"),
    ],
    weighted_metrics=[M.BinaryAccuracy(name="wacc")],
)
h = m.fit(
    x,
    y[:, None],
    sample_weight=w,
    batch_size=64,
    epochs=3,
    validation_data=(x[:90], y[:90, None], w[:90]),
    verbose=0,
)
m.fit(x, y[:, None], class_weight={0: 1.0, 1: 4.0}, batch_size=50, epochs=1, verbose=0)
done(
    m, h, ev=m.evaluate(x, y[:, None], sample_weight=w, batch_size=100, verbose=0, return_dict=True)
)
