"""Kafka: the engine, its topics, the local broker."""
