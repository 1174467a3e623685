"""The inputs of a wheel: the official wheel, headers, and the libraries that Bazel builds."""
