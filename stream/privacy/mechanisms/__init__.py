"""Mechanisms as pure functions of integers: the caller passes the noise, and there is no I/O."""
