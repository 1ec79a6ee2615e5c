"""SQL: converts a SELECT of aggregates into questions to a stream."""
