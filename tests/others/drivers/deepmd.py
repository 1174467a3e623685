"""DeePMD-kit's first command: `dp --tf train` of a short-ranged descriptor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from deepmd.main import main
from report import done

# Two types of atoms in a box, with harmonic energies.
drawn = np.random.default_rng(0)
frames, atoms, side = 24, 12, 8.0
start = drawn.uniform(0, side, (1, atoms, 3))
moved = drawn.normal(0, 0.05, (frames, atoms, 3))
data = Path("data")
(data / "set.000").mkdir(parents=True, exist_ok=True)
(data / "type.raw").write_text("\n".join(str(i % 2) for i in range(atoms)))
(data / "type_map.raw").write_text("A\nB\n")
arrays = {
    "coord": (start + moved).reshape(frames, -1),
    "box": np.tile((side * np.eye(3)).reshape(1, 9), (frames, 1)),
    "energy": (moved**2).sum((1, 2)),
    "force": (-2 * moved).reshape(frames, -1),
}
for name, array in arrays.items():
    np.save(data / "set.000" / f"{name}.npy", array.astype(np.float32))
given = {
    "model": {
        "type_map": ["A", "B"],
        "descriptor": {
            "type": "se_e2_a", "sel": [12, 12], "rcut": 3.5, "rcut_smth": 0.5,
            "neuron": [4, 8], "axis_neuron": 4, "seed": 1,
        },
        "fitting_net": {"neuron": [8, 8], "seed": 1},
    },
    "learning_rate": {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-5, "decay_steps": 10},
    "loss": {"start_pref_e": 0.02, "start_pref_f": 1000},
    "training": {
        "training_data": {"systems": ["data"], "batch_size": 2},
        "numb_steps": 20, "seed": 1, "disp_file": "lcurve.out", "disp_freq": 5, "save_freq": 20,
    },
}  # fmt: skip
Path("input.json").write_text(json.dumps(given))
main(["--tf", "train", "input.json"])
lines = Path("lcurve.out").read_text().splitlines()
done(curve=[[float(word) for word in line.split()] for line in lines if not line.startswith("#")])
