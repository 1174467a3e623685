"""KerasHub's text classification, a small BERT from its configuration, Keras 3."""

from __future__ import annotations

import keras
import keras_hub
import numpy as np
from report import done

keras.utils.set_random_seed(1)
words = "the a film was good bad very not really dull fine".split()
drawn = np.random.default_rng(0)
texts = [" ".join(drawn.choice(words, 8)) for _ in range(96)]
labels = np.array([int("good" in text) for text in texts])
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
tokenizer = keras_hub.models.BertTokenizer(vocabulary=vocabulary, lowercase=True)
preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=len(vocabulary),
    num_layers=2,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    max_sequence_length=16,
)
classifier = keras_hub.models.BertTextClassifier(backbone, 2, preprocessor=preprocessor)
history = classifier.fit(texts, labels, batch_size=16, epochs=2, verbose=0)
done(
    history=history.history,
    weights=classifier.get_weights(),
    logits=classifier.predict(texts, batch_size=16, verbose=0),
)
