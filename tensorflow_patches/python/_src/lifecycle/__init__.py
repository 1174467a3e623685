"""How a rank starts and ends."""
