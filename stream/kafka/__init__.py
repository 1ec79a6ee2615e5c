"""Kafka: an adapter of the client library aiokafka, an installation's topics, and a local broker."""
