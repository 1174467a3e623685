"""A custom TensorFlow 2 loop: tf.data, GradientTape and compat.v1's Adam in a tf.function."""

import argparse

import tensorflow as tf


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    return parser.parse_args()


def datasets(batch_size):
    train, test = (
        tf.data.Dataset.from_tensor_slices((images, labels.astype("int32")))
        for images, labels in tf.keras.datasets.fashion_mnist.load_data()
    )
    train = train.shuffle(len(train)).batch(batch_size, drop_remainder=True)
    return train.prefetch(2), test.batch(500)


class Perceptron(tf.Module):
    """Two hidden layers on the flattened, scaled image."""

    def __init__(self, sizes):
        super().__init__()
        glorot = tf.initializers.GlorotUniform()
        self.layers = [
            (tf.Variable(glorot([rows, columns])), tf.Variable(tf.zeros([columns])))
            for rows, columns in zip(sizes[:-1], sizes[1:])
        ]

    def __call__(self, images):
        x = tf.reshape(tf.cast(images, tf.float32) / 255.0, [-1, 28 * 28])
        for index, (weights, bias) in enumerate(self.layers):
            x = tf.matmul(x, weights) + bias
            if index + 1 < len(self.layers):
                x = tf.nn.relu(x)
        return x


def main():
    options = parse_arguments()
    train, test = datasets(options.batch_size)
    model = Perceptron([28 * 28, 256, 128, 10])
    optimizer = tf.compat.v1.train.AdamOptimizer(options.learning_rate)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            )
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    @tf.function
    def evaluate(images, labels):
        logits = model(images)
        correct = tf.argmax(logits, axis=1, output_type=tf.int32) == labels
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(tf.cast(correct, tf.float32)), tf.reduce_sum(losses)

    for epoch in range(1, options.epochs + 1):
        for step, (images, labels) in enumerate(train, start=1):
            loss = train_step(images, labels)
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} batch loss {float(loss):.4f}", flush=True)

    count, sums = 0, tf.zeros([2])
    for images, labels in test:
        count += len(labels)
        sums += tf.stack(evaluate(images, labels))
    accuracy, loss = (sums / count).numpy()
    print(f"test accuracy {accuracy:.4f} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
