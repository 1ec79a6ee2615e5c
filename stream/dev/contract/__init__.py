"""The published contract: JSON Schemas, AsyncAPI document, and compatibility of versions."""
