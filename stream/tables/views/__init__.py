"""Views: the rows of a source as a SELECT over several tables.

Reading order: ``view_terms`` (typed expressions), ``view_plan``, ``view_parser`` (the accepted SQL), ``view_rows`` (joins
and batches).
"""
