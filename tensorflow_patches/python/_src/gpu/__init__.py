"""GPUs: which one a rank uses."""
