"""Deterministic simulation: the real engine and processors on a broker in memory, under a virtual clock."""
