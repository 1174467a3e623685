"""A wheel as a file: its entries, its RECORD, its metadata, and what is added to it."""
