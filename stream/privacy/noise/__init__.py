"""Keyed, exact, vectorized noise on the integers; only ``keys`` works without numpy."""
