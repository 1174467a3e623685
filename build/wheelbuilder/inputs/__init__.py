"""What a wheel is made from: the official one, headers and libraries, what Bazel builds."""
