"""Generates the published contract (JSON Schemas, AsyncAPI), and compares it with its release."""
