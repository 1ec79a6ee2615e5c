"""The processors: batches of records in, changes and outputs out, no Kafka. A folder for each role, over what they share."""
