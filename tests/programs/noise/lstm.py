"""Dropout of inputs and states in recurrent layers."""

import variants
from report import done


def make(keras):
    layers = keras.layers
    # tf_keras draws in each iteration of its loop; iterations run in parallel, so no two runs
    # agree.
    unroll = keras.__name__ == "tf_keras"
    return keras.Sequential(
        [
            keras.Input((3, 4)),
            layers.SpatialDropout1D(0.1, seed=1),
            layers.LSTM(
                6, dropout=0.2, recurrent_dropout=0.2, return_sequences=True, seed=2, unroll=unroll
            ),
            layers.Bidirectional(
                layers.GRU(5, dropout=0.1, recurrent_dropout=0.1, seed=3, unroll=unroll)
            ),
            layers.Dropout(0.2, seed=4),
            layers.Dense(1),
        ]
    )


def data(rows):
    x = variants.images(rows)[:, :3, :4, 0]
    return x, variants.labels(x)


done(variants=variants.of(make, data))
