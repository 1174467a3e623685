import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(110, 6)).astype("float32")
i = keras.Input((6,), name="x")
z = keras.layers.Dense(12, "tanh", activity_regularizer=keras.regularizers.L2(1e-3))(i)
a = keras.layers.Dense(1, name="a")(z)
b = keras.layers.Dense(3, "softmax", name="b")(z)
c = keras.layers.Dense(4, name="feat")(z)
d = keras.layers.Dense(2, name="d")(z)
m = keras.Model(i, {"a": a, "b": b, "feat": c, "d": d})
m.compile(
    keras.optimizers.Adam(0.01),
    loss={
        "a": keras.losses.Huber(0.3),
        "b": keras.losses.SparseCategoricalCrossentropy(),
        "d": keras.losses.CosineSimilarity(reduction="sum"),
    },
    loss_weights={"a": 2.0, "b": 0.3, "d": 0.01},
    metrics={"a": ["mae", keras.metrics.R2Score()], "b": "accuracy"},
    weighted_metrics={"b": ["sparse_categorical_crossentropy"]},
)
y = {"a": x[:, :1] - x[:, 1:2], "b": rng.integers(0, 3, 110), "d": x[:, 2:4], "feat": x[:, :4]}
sw = {
    "a": rng.uniform(0, 1, 110),
    "b": (rng.uniform(size=110) > 0.4).astype(float),
    "d": np.ones(110),
    "feat": np.ones(110),
}
h = m.fit(x, y, sample_weight=sw, batch_size=25, epochs=4, verbose=0, validation_split=0.3)
ev = m.evaluate(x, y, sample_weight=sw, batch_size=9, verbose=0, return_dict=True)
pr = m.predict(x[:11], verbose=0, batch_size=4)
done(m, h, ev=ev, feat=pr["feat"], n=sorted(pr))
