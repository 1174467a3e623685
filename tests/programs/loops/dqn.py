import random

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(310, 8)).astype("float32")
y = (np.tanh(x @ rng.normal(size=(8, 1))) + 0.1).astype("float32")
yc = (y[:, 0] > 0).astype("int32")


def mlp(out=1, act=None):
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(out, act)]
    )


from collections import deque

q, tg = mlp(3), mlp(3)
q.compile(keras.optimizers.Adam(0.01), "mse")
tg.set_weights(q.get_weights())
mem = deque(maxlen=200)
s = x[0]
eps = 1.0
out = []
for t in range(60):
    a = random.randrange(3) if random.random() < eps else int(np.argmax(q(s[None])[0]))
    s2 = x[(t * 7 + a) % 310]
    r = float(y[(t + a) % 310, 0])
    mem.append((s, a, r, s2))
    s = s2
    eps *= 0.97
    if len(mem) >= 32 and t % 4 == 0:
        b = random.sample(list(mem), 16)
        S = np.array([i[0] for i in b])
        N = np.array([i[3] for i in b])
        T = np.array(q(S))
        nx = np.max(tg.predict(N, verbose=0), 1)
        for k, (_, a_, r_, _) in enumerate(b):
            T[k, a_] = r_ + 0.9 * nx[k]
        out.append(float(q.fit(S, T, epochs=1, verbose=0).history["loss"][0]))
    if t % 20 == 0:
        tg.set_weights(q.get_weights())
done(q, None, out=out)
