"""The processors: batches of records in, changes and outputs out, no Kafka."""
