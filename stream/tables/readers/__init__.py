"""Reads tables from CSV, Parquet and Delta files, object stores and PostgreSQL.

A service reads in a separate process with limits: ``table_reading`` starts ``reading_process``, which opens the parts of
a table (``table_parts``) and sends their rows by ``reading_protocol``.
"""
