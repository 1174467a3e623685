import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")
lab = list(range(40))
pool = list(range(40, 250))
sizes = []


def make():
    m = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dropout(0.0),
            keras.layers.Dense(2, "softmax"),
        ]
    )
    m.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return m


m = make()
for _rnd in range(4):
    h = m.fit(x[lab], y[lab], batch_size=16, epochs=3, verbose=0)
    p = m.predict(x[pool], verbose=0, batch_size=50)
    ent = -(p * np.log(p + 1e-9)).sum(1)
    pick = [pool[i] for i in np.argsort(-ent)[:15]]
    sure = [pool[i] for i in np.where(p.max(1) > 0.9)[0]]
    lab += pick
    pool = [i for i in pool if i not in set(pick)]
    sizes.append((len(lab), len(pool), len(sure)))
    score = m(x[250:], training=False).numpy()
imp = []
for c in range(6):
    z = x[250:].copy()
    np.random.shuffle(z[:, c])
    imp.append(m.evaluate(z, y[250:], verbose=0)[0])
done(m, h, sizes=sizes, imp=imp, score=score)
