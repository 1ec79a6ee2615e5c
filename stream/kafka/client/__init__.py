"""Adapts aiokafka: connections, batches, transactions, groups; start at ``adapter``."""
