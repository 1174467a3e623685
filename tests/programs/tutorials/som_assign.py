import numpy as np
import tensorflow as tf
from report import done

tf.random.set_seed(22)
np.random.seed(22)
x = np.random.normal(size=(100, 3)).astype("float32")
w = tf.Variable(tf.random.normal([4, 3]))
k = tf.Variable(tf.zeros([2, 3]))
# k-means and a SOM by hand: no gradient at all
for e in range(3):
    for i in np.random.permutation(100)[:40]:
        d = tf.norm(w - x[i], axis=1)
        b = int(tf.argmin(d))
        w.scatter_nd_add([[b]], [0.1 * (x[i] - w[b])])
k.assign(x[:2])
for _ in range(5):
    a = tf.argmin(tf.norm(x[:, None] - k[None], axis=-1), 1)
    k.assign(tf.math.unsorted_segment_mean(x, a, 2))
done(None, None, w=w.numpy(), k=k.numpy())
