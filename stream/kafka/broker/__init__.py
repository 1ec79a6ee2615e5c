"""Runs a real Apache Kafka on this machine for demos and tests; start at ``local_broker``."""
