import keras
import numpy as np
import tensorflow as tf
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


words = [f"w{i}" for i in range(30)]
text = np.array([" ".join(rng.choice(words, 5)) for _ in range(200)])
lab = np.array([s.count("1") for s in text], "float32")
tv = keras.layers.TextVectorization(max_tokens=25, output_sequence_length=6)
tv.adapt(tf.data.Dataset.from_tensor_slices(text).shuffle(200).batch(16))
m = keras.Sequential(
    [
        keras.Input((1,), dtype="string"),
        tv,
        keras.layers.Embedding(25, 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
)
m.compile("adam", "mse")
h = m.fit(tf.constant(text[:, None]), lab, epochs=3, batch_size=16, verbose=0)
done(m, h, v=len(tv.get_vocabulary()))
