import keras
import numpy as np
from report import done

keras.utils.set_random_seed(23)
rng = np.random.default_rng(12)
X = rng.normal(size=(100, 10)).astype("float32")
Y = X[:, :1] - X[:, 1:2]
kept = []


class Prune(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        for layer in self.model.layers:
            if hasattr(layer, "mask"):
                layer.kernel.assign(layer.kernel * layer.mask)

    def on_epoch_end(self, epoch, logs=None):
        for layer in self.model.layers:
            kernel = layer.kernel.numpy()
            limit = np.percentile(np.abs(kernel), 10 * (epoch + 1))
            layer.mask = (np.abs(kernel) >= limit).astype("float32")
            kept.append(int(layer.mask.sum()))
        noise = np.random.normal(scale=0.01, size=self.model.layers[-1].bias.shape)
        self.model.layers[-1].bias.assign_add(noise)
        self.model.optimizer.learning_rate = 0.05 / (epoch + 2)


m = keras.Sequential([keras.Input((10,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(1)])
m.compile(keras.optimizers.SGD(0.05, nesterov=True, momentum=0.8), "mse")
h = m.fit(X, Y, batch_size=30, epochs=4, callbacks=[Prune()], verbose=0)
done(m, h, kept=kept)
