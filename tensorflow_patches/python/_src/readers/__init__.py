"""Readers of files: this rank's part of text and arrays, image data sets whole."""
