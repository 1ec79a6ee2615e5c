"""Runs a real Apache Kafka on this machine for demos and tests; read ``local_broker`` first."""
