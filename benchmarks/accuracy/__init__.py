"""Measures the accuracy of many answers about one table for the same budget: `pmw` compared with all alternatives."""
