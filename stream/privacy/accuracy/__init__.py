"""Accuracy: error bounds of mechanisms from the laws of their noise."""
