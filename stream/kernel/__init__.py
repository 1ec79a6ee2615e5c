"""Runs loops over the events of a batch: in the kernel, compiled from C, or without it in Python.

Both give the same bytes. The kernel does not depend on Kafka, streams or privacy; ``library`` loads it.
"""
