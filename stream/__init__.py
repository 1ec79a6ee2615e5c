"""Sotto: differentially private answers on a Kafka query stream."""
