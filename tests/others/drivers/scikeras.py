"""SciKeras's quickstart: a Keras model in scikit-learn's cross validation and grid search."""

from __future__ import annotations

import keras
import numpy as np
from report import done
from scikeras.wrappers import KerasClassifier
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV, cross_val_score

x, y = make_classification(240, 20, n_informative=10, random_state=0)
x = x.astype(np.float32)


def get_model(hidden_layer_dim, meta):
    return keras.Sequential(
        [
            keras.Input((meta["n_features_in_"],)),
            keras.layers.Dense(hidden_layer_dim, "relu"),
            keras.layers.Dense(meta["n_classes_"], "softmax"),
        ]
    )


classifier = KerasClassifier(
    get_model,
    loss="sparse_categorical_crossentropy",
    optimizer="adam",
    hidden_layer_dim=30,
    epochs=3,
    verbose=0,
    random_state=1,
)
scores = cross_val_score(classifier, x, y, cv=3)
search = GridSearchCV(classifier, {"hidden_layer_dim": [10, 30]}, cv=2, scoring="accuracy")
search.fit(x, y)
done(
    scores=scores,
    best=search.best_params_,
    probabilities=search.predict_proba(x[:50]),
    weights=search.best_estimator_.model_.get_weights(),
)
