"""A real Apache Kafka on this machine, for demos, tests and benchmarks."""
