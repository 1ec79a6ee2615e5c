"""Reads tables with declared attributes, and computes exact private counts and sums over them.

Reading order: ``rows``, ``people`` (contribution bound), ``counted_table``, ``columns_table``, ``predicates``, ``store``.
A table may be larger than memory: then a database on local disk holds and counts its codes (``stored_table``).
"""
