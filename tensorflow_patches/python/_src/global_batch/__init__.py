"""Losses, metrics and state that depend on the whole batch, in a step on this rank's part of it."""
