"""What only the whole batch can tell, in a step that has this rank's part of it."""
