"""Commands that run services, local brokers, the demo and tools."""
