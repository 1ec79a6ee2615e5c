"""Adapts aiokafka: connections, batches, transactions, groups; read ``adapter`` first."""
