import keras
import numpy as np
from report import done

keras.utils.set_random_seed(8)
x = np.random.normal(size=(200, 5)).astype("float32")
y = (x @ np.arange(5)[:, None]).astype("float32")
m = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
m.compile(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), "mse", metrics=["mae"])
log = []
for epoch in range(3):
    idx = np.random.permutation(200)
    for i in range(0, 200, 48):
        j = idx[i : i + 48]
        r = m.train_on_batch(x[j], y[j], return_dict=True)
    log.append(r)
    m.reset_metrics()
    t = m.test_on_batch(x[:37], y[:37])
    log.append(t)
p = m.predict_on_batch(x[:9])
done(
    m,
    None,
    log=[list(map(float, v.values())) if isinstance(v, dict) else list(map(float, v)) for v in log],
    p=p,
)
