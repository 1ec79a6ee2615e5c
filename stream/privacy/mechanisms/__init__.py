"""Mechanisms as pure functions of integers, without noise generation or I/O."""
