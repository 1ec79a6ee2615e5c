"""Reads tables from files, object stores, Delta and Iceberg tables, PostgreSQL and other servers.

A service reads in a separate process with limits: ``table_reading`` starts ``reading_process``, which opens the parts of
a table (``source_parts``) and sends their rows by ``reading_protocol``.

A view is a SELECT over several tables: ``view_terms`` (typed expressions), ``view_syntax`` and ``view_parser`` (the
accepted SQL), ``view_rows`` (plans, joins and batches).
"""
