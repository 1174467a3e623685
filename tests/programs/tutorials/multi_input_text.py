import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(7)
rng = np.random.default_rng(0)
words = "alpha beta gamma delta eps zeta eta".split()
text = np.array([" ".join(rng.choice(words, 5)) for _ in range(150)])
num = rng.normal(size=(150, 3)).astype("float32")
y = np.array([t.count("alpha") for t in text], "float32") + num[:, 0]
tv = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=5)
tv.adapt(text)
nm = keras.layers.Normalization()
nm.adapt(num)
ti, ni = keras.Input((1,), dtype="string", name="text"), keras.Input((3,), name="num")
e = keras.layers.GlobalAveragePooling1D()(
    keras.layers.Embedding(20, 4, mask_zero=True)(
        keras.layers.Lambda(lambda t: t, output_shape=(5,), dtype="int64")(tv(ti))
    )
)
out = keras.layers.Dense(1)(keras.layers.Concatenate()([e, nm(ni)]))
m = keras.Model([ti, ni], out)
m.compile("adam", "mse")
ds = (
    tf.data.Dataset.from_tensor_slices(({"text": text[:, None], "num": num}, y))
    .shuffle(150)
    .batch(30)
    .prefetch(1)
)
h = m.fit(ds, epochs=3, verbose=0)
p = m.predict({"text": tf.constant(text[:40, None].astype(str)), "num": num[:40]}, verbose=0)
done(m, h, p=p, vocab=tv.get_vocabulary())
