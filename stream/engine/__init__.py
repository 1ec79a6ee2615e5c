"""The engine: fenced, restored, exactly-once processing of input partitions."""
