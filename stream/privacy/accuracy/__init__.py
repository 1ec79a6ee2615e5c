"""Error bounds of mechanisms, computed from the laws of their noise."""
