"""Reads and writes wheel files: their entries, RECORD and metadata, and the files we add."""
