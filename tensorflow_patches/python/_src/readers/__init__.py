"""File readers that read only this rank's part."""
