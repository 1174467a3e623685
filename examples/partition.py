"""A script that uses tf.mpi: each rank reads its own part of the data, and only rank 0 prints.

Needs this project's wheel; runs on one process or on N.
"""

import argparse

import numpy as np
import tensorflow as tf


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128, help="total over all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    return parser.parse_args()


def load_part(rank, size):
    """Every size-th image, starting at `rank`; for training, the same number on each rank."""
    (train_images, train_labels), (test_images, test_labels) = (
        tf.keras.datasets.fashion_mnist.load_data()
    )
    each = len(train_images) // size
    train = train_images[rank::size][:each], train_labels[rank::size][:each]
    test = test_images[rank::size], test_labels[rank::size]
    return [
        (images.reshape(-1, 28 * 28).astype(np.float32) / 255.0, labels.astype(np.int32))
        for images, labels in (train, test)
    ]


def main():
    options = parse_arguments()
    tf.mpi.own_data()  # this script divides the data itself
    rank, size = tf.mpi.rank(), tf.mpi.size()
    (train_images, train_labels), (test_images, test_labels) = load_part(rank, size)

    glorot = tf.initializers.GlorotUniform()
    weights = [tf.Variable(glorot([784, 128])), tf.Variable(glorot([128, 10]))]
    biases = [tf.Variable(tf.zeros([128])), tf.Variable(tf.zeros([10]))]
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(options.learning_rate)

    def logits(images):
        hidden = tf.nn.relu(tf.matmul(images, weights[0]) + biases[0])
        return tf.matmul(hidden, weights[1]) + biases[1]

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(images))
            )
        variables = weights + biases
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    batch = options.batch_size // size
    random = np.random.default_rng()
    for epoch in range(1, options.epochs + 1):
        order = random.permutation(len(train_images))
        losses = []
        for first in range(0, len(order) - batch + 1, batch):
            chosen = order[first : first + batch]
            losses.append(train_step(train_images[chosen], train_labels[chosen]))
        loss = tf.mpi.allreduce(tf.reduce_mean(losses), op="average")
        if rank == 0:
            print(f"epoch {epoch} loss {float(loss):.4f}", flush=True)

    # Average counts, not rates, because the parts of the test set may differ in size by one image.
    correct = tf.argmax(logits(test_images), axis=1, output_type=tf.int32) == test_labels
    counts = tf.stack([tf.reduce_sum(tf.cast(correct, tf.float32)), float(len(test_labels))])
    right, total = tf.mpi.allreduce(counts, op="average").numpy()
    if rank == 0:
        print(f"test accuracy {right / total:.4f} on {size} ranks", flush=True)


if __name__ == "__main__":
    main()
