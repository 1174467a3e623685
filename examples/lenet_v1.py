"""LeNet on Fashion-MNIST: a compat.v1 graph and Session with MomentumOptimizer."""

import argparse
import time

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    return parser.parse_args()


def load_data():
    train, test = tf.keras.datasets.fashion_mnist.load_data()
    return [
        (images[..., np.newaxis].astype(np.float32) / 255.0, labels.astype(np.int32))
        for images, labels in (train, test)
    ]


def variable(name, shape):
    return v1.get_variable(name, shape, initializer=v1.glorot_uniform_initializer())


def bias(name, size):
    return v1.get_variable(name, [size], initializer=v1.zeros_initializer())


def lenet(images):
    x = tf.nn.conv2d(images, variable("conv1/w", [5, 5, 1, 16]), strides=1, padding="SAME")
    x = tf.nn.max_pool2d(tf.nn.relu(x + bias("conv1/b", 16)), 2, 2, "SAME")
    x = tf.nn.conv2d(x, variable("conv2/w", [5, 5, 16, 32]), strides=1, padding="SAME")
    x = tf.nn.max_pool2d(tf.nn.relu(x + bias("conv2/b", 32)), 2, 2, "SAME")
    x = tf.reshape(x, [-1, 7 * 7 * 32])
    x = tf.nn.relu(tf.matmul(x, variable("fc1/w", [7 * 7 * 32, 256])) + bias("fc1/b", 256))
    return tf.matmul(x, variable("fc2/w", [256, 10])) + bias("fc2/b", 10)


def main():
    options = parse_arguments()
    v1.disable_eager_execution()
    (train_images, train_labels), (test_images, test_labels) = load_data()

    images = v1.placeholder(tf.float32, [None, 28, 28, 1])
    labels = v1.placeholder(tf.int32, [None])
    logits = lenet(images)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    correct = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
    accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
    optimizer = v1.train.MomentumOptimizer(options.learning_rate, momentum=0.9)
    train_step = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())

    random = np.random.default_rng()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        start = time.perf_counter()
        for step in range(1, options.steps + 1):
            chosen = random.integers(len(train_images), size=options.batch_size)
            batch = {images: train_images[chosen], labels: train_labels[chosen]}
            _, batch_loss = session.run([train_step, loss], batch)
            if step % 250 == 0 or step == options.steps:
                print(f"step {step} batch loss {batch_loss:.4f}", flush=True)
        seconds = time.perf_counter() - start

        parts = [
            session.run(
                [accuracy, loss],
                {images: test_images[i : i + 500], labels: test_labels[i : i + 500]},
            )
            for i in range(0, len(test_images), 500)
        ]
    test_accuracy, test_loss = np.mean(parts, axis=0)
    print(f"trained {options.steps} steps in {seconds:.1f} s")
    print(f"test accuracy {test_accuracy:.4f} loss {test_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
