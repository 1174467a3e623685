import random

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(11)
text = "the cat sat on the mat and the dog sat on the log " * 6
chars = sorted(set(text))
index = {c: i for i, c in enumerate(chars)}
starts = range(0, len(text) - 9, 3)
X = np.zeros((len(starts), 8, len(chars)), "bool")
Y = np.zeros((len(starts), len(chars)), "bool")
for row, start in enumerate(starts):
    for t, c in enumerate(text[start : start + 8]):
        X[row, t, index[c]] = 1
    Y[row, index[text[start + 8]]] = 1
m = keras.Sequential(
    [keras.Input((8, len(chars))), keras.layers.LSTM(12), keras.layers.Dense(len(chars), "softmax")]
)
m.compile(keras.optimizers.RMSprop(0.01), "categorical_crossentropy")
said = []


def sample(p, temperature):
    p = np.exp(np.log(np.asarray(p).astype("float64") + 1e-9) / temperature)
    return int(np.argmax(np.random.multinomial(1, p / p.sum(), 1)))


for _ in range(3):
    h = m.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    start = random.randint(0, len(text) - 9)
    sentence = text[start : start + 8]
    for _ in range(5):
        x = np.zeros((1, 8, len(chars)))
        for t, c in enumerate(sentence[-8:]):
            x[0, t, index[c]] = 1.0
        sentence += chars[sample(m.predict(x, verbose=0)[0], 0.5)]
    said.append(sentence)
done(m, h, said=said)
