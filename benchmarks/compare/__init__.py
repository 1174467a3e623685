"""A language model on real text, trained in several ways from one script, and compared."""
