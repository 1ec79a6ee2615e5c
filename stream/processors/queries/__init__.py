"""The workers' role: queries in, answers out."""

from stream.processors.queries.processor import QueryProcessor

__all__ = ["QueryProcessor"]
