"""A Keras model with a custom train_step, compiled by XLA: a classifier and an autoencoder."""

import argparse

import keras
import tensorflow as tf


class Twofold(keras.Model):
    """An encoder with a classifier and a decoder; the loss is the sum of both errors."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(32, activation="relu")]
        )
        self.classifier = keras.layers.Dense(10)
        self.decoder = keras.layers.Dense(28 * 28)

    def call(self, images):
        code = self.encoder(images)
        return self.classifier(code), self.decoder(code)

    def train_step(self, batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            logits, rebuilt = self(images, training=True)
            wrong = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            far = tf.reduce_mean(tf.square(rebuilt - images), axis=-1)
            loss = tf.reduce_mean(wrong + far)
        variables = self.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 5.0)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {
            "error": loss
        }  # not "loss": that is Keras's own metric, which only compute_loss updates


def load():
    """Images as vectors scaled to [0, 1]; labels from 0 to 9."""
    return [
        (images.reshape(-1, 28 * 28).astype("float32") / 255, labels.astype("int32"))
        for images, labels in keras.datasets.fashion_mnist.load_data()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()

    (x_train, y_train), (x_test, y_test) = load()
    model = Twofold()
    model.compile(optimizer=keras.optimizers.Adam(), jit_compile=True)
    model.fit(x_train, y_train, batch_size=options.batch_size, epochs=options.epochs, verbose=2)
    logits, _ = model.predict(x_test, batch_size=1000, verbose=0)
    accuracy = (logits.argmax(axis=1) == y_test).mean()
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
