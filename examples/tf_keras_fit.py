"""A Keras 2 script, which needs tf_keras: pip install --no-deps tf_keras==2.21.0"""

import argparse

import tf_keras as keras


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()

    train, test = keras.datasets.fashion_mnist.load_data()
    model = keras.Sequential(
        [
            keras.layers.Rescaling(1 / 255, input_shape=(28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(*train, batch_size=options.batch_size, epochs=options.epochs, verbose=2)
    loss, accuracy = model.evaluate(*test, batch_size=1000, verbose=0)
    print(f"test accuracy {accuracy:.4f} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
