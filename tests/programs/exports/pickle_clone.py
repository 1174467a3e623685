import copy
import io
import pickle

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(100, 6)).astype("float32")
y = x[:, :1].astype("float32")


class Regressor:
    def __init__(self, units=8, lr=0.01):
        self.units, self.lr = units, lr

    def fit(self, x, y):
        self.model_ = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(self.units, "tanh"), keras.layers.Dense(1)]
        )
        self.model_.compile(keras.optimizers.Adam(self.lr), "mse")
        self.h = self.model_.fit(x, y, batch_size=20, epochs=2, verbose=0)
        return self

    def predict(self, x):
        return self.model_.predict(x, verbose=0)


r = Regressor().fit(x, y)
blob = pickle.dumps(r.model_)
back = pickle.loads(blob)
deep = copy.deepcopy(r.model_)
with open("model.pkl", "wb") as f:
    pickle.dump((r.model_.get_weights(), r.h.history), f)
w, hh = pickle.load(open("model.pkl", "rb"))
clone = keras.models.clone_model(r.model_)
clone.set_weights(w)
clone.compile("sgd", "mse")
h2 = clone.fit(x, y, batch_size=30, epochs=2, verbose=0)
conf = keras.Sequential.from_config(r.model_.get_config())
conf.set_weights(back.get_weights())
back.fit(x, y, batch_size=30, epochs=1, verbose=0)
deep.fit(x, y, batch_size=30, epochs=1, verbose=0)
js = keras.models.model_from_json(r.model_.to_json())
js.set_weights(deep.get_weights())
buf = io.BytesIO()
np.savez(buf, *js.get_weights())
buf.seek(0)
z = np.load(buf)
done(
    clone,
    h2,
    deep=deep.get_weights(),
    back=back.get_weights(),
    z=[z[k] for k in z.files],
    p=r.predict(x),
)
