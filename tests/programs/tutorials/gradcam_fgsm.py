import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 8, 8, 1)).astype("float32")
y = (x.mean((1, 2, 3)) > 0).astype("int32")
inp = keras.Input((8, 8, 1))
c = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(inp)
out = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(c))
m = keras.Model(inp, out)
m.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
h = m.fit(x, y, batch_size=20, epochs=2, verbose=0)
grad_model = keras.Model(m.inputs, [m.get_layer("conv").output, m.output])
with tf.GradientTape() as tape:
    conv, pred = grad_model(x[:5])
    score = tf.reduce_sum(tf.reduce_max(pred, -1))
g = tape.gradient(score, conv)
heat = tf.nn.relu(tf.reduce_sum(tf.reduce_mean(g, (1, 2), keepdims=True) * conv, -1)).numpy()
np.save("heat.npy", heat)
# FGSM
xt = tf.convert_to_tensor(x[:30])
with tf.GradientTape() as tape:
    tape.watch(xt)
    loss = m.compute_loss(x=xt, y=y[:30], y_pred=m(xt))
adv = xt + 0.1 * tf.sign(tape.gradient(loss, xt))
ev = m.evaluate(adv, y[:30], verbose=0)
# gradient norms by layer, for a look only
with tf.GradientTape() as tape:
    loss = m.compute_loss(x=x, y=y, y_pred=m(x))
norms = [float(tf.norm(v)) for v in tape.gradient(loss, m.trainable_variables)]
done(m, h, heat=np.load("heat.npy"), ev=ev, norms=norms)
