import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(90, 6)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
m = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
)
m.compile("adam", "binary_crossentropy")
h = m.fit(x, y, batch_size=20, epochs=2, verbose=0)
with tempfile.TemporaryDirectory() as d:
    m.export(os.path.join(d, "saved"), verbose=False)
    c = tf.lite.TFLiteConverter.from_saved_model(os.path.join(d, "saved"))
    blob = c.convert()
with open("model.tflite", "wb") as f:
    f.write(blob)
i = tf.lite.Interpreter(model_content=blob)
i.allocate_tensors()
i.set_tensor(i.get_input_details()[0]["index"], x[:1])
i.invoke()
out = i.get_tensor(i.get_output_details()[0]["index"])
done(m, h, out=out, same=bool(np.allclose(out, m.predict(x[:1], verbose=0), atol=1e-4)))
