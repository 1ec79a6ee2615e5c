"""Views: the rows of a source as a SELECT over several tables.

Reading order: ``view_terms`` (typed expressions), ``view_syntax`` and ``view_parser`` (the accepted SQL), ``view_rows``
(plans, joins and batches).
"""
