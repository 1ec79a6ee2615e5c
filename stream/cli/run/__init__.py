"""Commands that run services, brokers and tools."""
