"""Fenced, restored, exactly-once processing of input partitions."""
