"""Everything about Kafka: aiokafka's adapter, an installation's topics, a local broker."""
