"""TF-GNN's introduction: message passing over molecules, one class per graph."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn
import tf_keras
from report import done
from tf_keras import layers

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
STATE = tfgnn.HIDDEN_STATE


def molecule():
    size, bonds = drawn.integers(4, 9), drawn.integers(6, 20)
    kinds = drawn.integers(0, 7, size)
    ends = [("atoms", drawn.integers(0, size, bonds).astype("i4")) for _ in range(2)]
    return tfgnn.GraphTensor.from_pieces(
        context=tfgnn.Context.from_fields(features={"label": [int(kinds.mean() > 3)]}),
        node_sets={
            "atoms": tfgnn.NodeSet.from_fields(
                sizes=np.array([size], "i4"), features={STATE: np.eye(7, dtype="f4")[kinds]}
            )
        },
        edge_sets={
            "bonds": tfgnn.EdgeSet.from_fields(
                sizes=np.array([bonds], "i4"),
                features={STATE: np.eye(4, dtype="f4")[drawn.integers(0, 4, bonds)]},
                adjacency=tfgnn.Adjacency.from_indices(*ends),
            )
        },
    )


def decoded(record):
    graph = tfgnn.parse_single_example(spec, record, validate=True)
    features = graph.context.get_features_dict()
    label = features.pop("label")
    return graph.replace_features(context=features), label


def dense(units):
    penalty = tf_keras.regularizers.l2(5e-4)
    layer = layers.Dense(units, "relu", kernel_regularizer=penalty, bias_regularizer=penalty)
    return tf_keras.Sequential([layer, layers.Dropout(0.5)])


spec = molecule().spec.relax(num_nodes=True, num_edges=True)
with tf.io.TFRecordWriter("molecules.tfrecords") as writer:
    for _ in range(120):
        # Without it, protobuf orders the features differently in each process.
        writer.write(tfgnn.write_example(molecule()).SerializeToString(deterministic=True))
molecules = tf.data.TFRecordDataset("molecules.tfrecords").map(decoded)
train, valid = molecules.take(90).batch(32), molecules.skip(90).batch(32)

inputs = layers.Input(type_spec=train.element_spec[0])
graph = tfgnn.keras.layers.MapFeatures(
    node_sets_fn=lambda nodes, node_set_name: layers.Dense(16)(nodes[STATE]),
    edge_sets_fn=lambda edges, edge_set_name: layers.Dense(16)(edges[STATE]),
)(inputs.merge_batch_to_components())
for _ in range(2):
    messages = tfgnn.keras.layers.SimpleConv(
        dense(32), "sum", receiver_tag=tfgnn.TARGET, sender_edge_feature=STATE
    )
    update = tfgnn.keras.layers.NodeSetUpdate(
        {"bonds": messages}, tfgnn.keras.layers.NextStateFromConcat(dense(32))
    )
    graph = tfgnn.keras.layers.GraphUpdate(node_sets={"atoms": update})(graph)
pooled = tfgnn.keras.layers.Pool(tfgnn.CONTEXT, "mean", node_set_name="atoms")(graph)
model = tf_keras.Model(inputs, layers.Dense(1)(pooled))
model.compile(
    tf_keras.optimizers.Adam(),
    tf_keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[tf_keras.metrics.BinaryAccuracy(threshold=0.0)],
)
history = model.fit(train, epochs=3, validation_data=valid, verbose=0)
done(
    history=history.history,
    weights=model.get_weights(),
    predicted=model.predict(valid, verbose=0),
)
