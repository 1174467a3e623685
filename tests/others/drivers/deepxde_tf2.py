"""As deepxde.py, by DeepXDE's backend for TensorFlow 2."""

import os
import runpy
from pathlib import Path

os.environ["DDE_BACKEND"] = "tensorflow"
runpy.run_path(str(Path(__file__).with_name("deepxde.py")))
