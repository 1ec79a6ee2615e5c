"""Feeds count each partition's windows; merging adds the counts and asks the questions.

Order of reading: ``count_processor``, ``counted_streams``, ``tally_groups``, ``merge_processor``.
``event_reader``, ``event_decoding`` and ``event_fields`` convert people's events from bytes to columns.
"""
