"""Adapts aiokafka: connections, record batches, transactions, group membership."""
