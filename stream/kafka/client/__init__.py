"""The adapter of aiokafka: connections, record batches, transactions and group membership."""
