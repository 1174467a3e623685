import keras
import numpy as np
from report import done

keras.utils.set_random_seed(20)


@keras.saving.register_keras_serializable("mine")
class Block(keras.layers.Layer):
    def __init__(self, n, **k):
        super().__init__(**k)
        self.n = n
        self.d = keras.layers.Dense(n)

    def build(self, s):
        self.d.build(s)
        self.g = self.add_weight(shape=(self.n,), initializer="ones", name="g")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=None):
        if training:
            self.seen.assign_add(1.0)
        return keras.ops.gelu(self.d(x)) * self.g

    def get_config(self):
        return {**super().get_config(), "n": self.n}


@keras.saving.register_keras_serializable("mine")
def rmsle(t, p):
    return keras.ops.sqrt(
        keras.ops.mean(
            keras.ops.square(
                keras.ops.log1p(keras.ops.relu(t)) - keras.ops.log1p(keras.ops.relu(p))
            )
        )
    )


rng = np.random.default_rng(0)
x = rng.normal(size=(96, 5)).astype("float32")
y = np.abs(x[:, :1])
m = keras.Sequential([keras.Input((5,)), Block(6), keras.layers.Dense(1)])
m.compile(keras.optimizers.Nadam(0.01), rmsle, metrics=[rmsle])
h = m.fit(
    x,
    y,
    batch_size=24,
    epochs=2,
    verbose=0,
    callbacks=[
        keras.callbacks.ModelCheckpoint(
            "b_{epoch}_{loss:.2f}.keras", monitor="loss", save_best_only=True
        )
    ],
)
m.save("m.keras")
r = keras.models.load_model("m.keras")
h2 = r.fit(x, y, batch_size=24, epochs=2, verbose=0)
e1, e2 = m.evaluate(x, y, verbose=0), r.evaluate(x, y, verbose=0)
done(r, h2, e1=e1, e2=e2, seen=float(r.layers[0].seen))
