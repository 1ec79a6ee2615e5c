"""Reads tables with declared attributes, and computes exact private counts and sums over them.

Reading order: ``rows``, ``people`` (contribution bound), ``counted_table``, ``columns_table``, ``predicates``, ``store``.
"""
