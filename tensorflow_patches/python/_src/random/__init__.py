"""What a program draws at random: alike on all ranks, but for different samples."""
