"""Keyed, exact, vectorized noise on the integers; ``keys`` needs no NumPy."""
