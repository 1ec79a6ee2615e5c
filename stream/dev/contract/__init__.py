"""The published contract: JSON Schemas, an AsyncAPI document, and what may change from version to version."""
