"""Mechanisms as pure functions of integers: callers pass the noise, and there is no I/O."""
