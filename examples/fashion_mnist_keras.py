"""Keras on Fashion-MNIST: LeNet, a small convolutional network, trained with fit."""

import argparse
import time

import keras


def load():
    """Images scaled to [0, 1], with a channel dimension; labels from 0 to 9."""
    (x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
    x_train = x_train[..., None].astype("float32") / 255
    x_test = x_test[..., None].astype("float32") / 255
    return (x_train, y_train), (x_test, y_test)


def build():
    return keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 5, activation="tanh"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Conv2D(32, 5, activation="tanh"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="tanh"),
            keras.layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    train, test = load()
    model = build()
    model.compile(
        optimizer=keras.optimizers.Adam(0.002),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    start = time.time()
    model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_split=0.1,
        verbose=2,
        callbacks=[keras.callbacks.EarlyStopping(patience=2)],
    )
    seconds = time.time() - start
    loss, accuracy = model.evaluate(*test, batch_size=1000, verbose=0)
    print(f"trained in {seconds:.1f} s", flush=True)
    print(f"test accuracy {accuracy:.4f} loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
