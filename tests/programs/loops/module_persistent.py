import tensorflow as tf
from report import done

tf.random.set_seed(14)
X = tf.random.normal([64, 5], seed=1)
Y = tf.reduce_sum(X[:, :2], axis=1, keepdims=True)


class Net(tf.Module):
    def __init__(self):
        super().__init__()
        g = tf.random.Generator.from_seed(3)
        self.w = tf.Variable(g.normal([5, 8]) * 0.3, name="w")
        self.v = tf.Variable(g.normal([8, 1]) * 0.3, name="v")
        self.rate = tf.Variable(0.05, trainable=False)
        self.seen = tf.Variable(0, trainable=False)

    def __call__(self, x):
        return tf.tanh(x @ self.w) @ self.v


net = Net()
ema = tf.train.ExponentialMovingAverage(0.9)
data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).batch(16).repeat(3)


@tf.function(reduce_retracing=True)
def step(x, y):
    with tf.GradientTape(persistent=True) as tape:
        out = net(x + tf.random.normal(tf.shape(x), stddev=0.01))
        fit = tf.reduce_mean(tf.square(out - y))
        size = tf.add_n([tf.nn.l2_loss(v) for v in net.trainable_variables])
    for v in net.trainable_variables:
        g = tape.gradient(fit, v) + 1e-3 * tape.gradient(size, v)
        v.assign_sub(net.rate * tf.clip_by_norm(g, 1.0))
    net.seen.assign_add(tf.shape(x)[0])
    net.rate.assign(net.rate * 0.99)
    ema.apply(net.trainable_variables)
    return fit


losses = [float(step(x, y)) for x, y in data]
averages = [ema.average(v).numpy() for v in net.trainable_variables]
done(None, None, losses=losses, w=net.w.numpy(), seen=int(net.seen), averages=averages)
