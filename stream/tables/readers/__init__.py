"""Reads tables from CSV, Parquet and Delta files, object stores and PostgreSQL.

Services read in a separate process with limits: ``table_reading`` starts ``reading_process``, which opens the
``table_parts`` of a path and sends their rows by ``reading_protocol``.
"""
