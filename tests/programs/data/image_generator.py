import keras
import numpy as np
from keras.src.legacy.preprocessing.image import ImageDataGenerator
from report import done

keras.utils.set_random_seed(5)
rng = np.random.default_rng(2)
X = rng.random((90, 8, 8, 3)).astype("float32") * 255
Y = keras.utils.to_categorical(rng.integers(0, 3, 90), 3)
train = ImageDataGenerator(
    rescale=1 / 255.0,
    horizontal_flip=True,
    width_shift_range=1,
    validation_split=0.2,
    dtype="float32",
)
m = keras.Sequential(
    [
        keras.Input((8, 8, 3)),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(3, "softmax"),
    ]
)
m.compile(keras.optimizers.SGD(0.05, momentum=0.9), "categorical_crossentropy", metrics=["acc"])
h = m.fit(
    train.flow(X, Y, batch_size=16, subset="training"),
    validation_data=train.flow(X, Y, batch_size=16, subset="validation", shuffle=False),
    epochs=2,
    verbose=0,
)
test = ImageDataGenerator(rescale=1 / 255.0, dtype="float32").flow(
    X[:30], batch_size=8, shuffle=False
)
done(m, h, p=m.predict(test, verbose=0))
