"""Readers of tables: CSV, Parquet, Delta, object stores and PostgreSQL, each in a process with limits."""
