"""StarDist's training example: star-convex polygons around discs."""

from __future__ import annotations

import keras
import numpy as np
from report import done
from stardist.models import Config2D, StarDist2D

keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
rows, columns = np.mgrid[:64, :64]
images, masks = [], []
for _ in range(8):
    mask = np.zeros((64, 64), np.uint16)
    for number in range(1, 5):
        y, x = drawn.uniform(10, 54, 2)
        mask[(rows - y) ** 2 + (columns - x) ** 2 < drawn.uniform(4, 8) ** 2] = number
    masks.append(mask)
    images.append(((mask > 0) + drawn.normal(0, 0.1, mask.shape)).astype(np.float32))
config = Config2D(
    n_rays=8,
    grid=(2, 2),
    unet_n_depth=2,
    unet_n_filter_base=8,
    net_conv_after_unet=16,
    train_patch_size=(32, 32),
    train_batch_size=4,
    train_epochs=2,
    train_steps_per_epoch=4,
    train_tensorboard=False,
)
model = StarDist2D(config, name="discs", basedir="models")
history = model.train(images, masks, validation_data=(images[:2], masks[:2]), seed=1)
labels, found = model.predict_instances(images[0])
done(
    history=history.history,
    weights=model.keras_model.get_weights(),
    labels=labels,
)
