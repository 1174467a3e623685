"""Trains a language model on real text in several ways from one script, and compares them."""
