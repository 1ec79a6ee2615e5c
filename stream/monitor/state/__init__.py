"""The monitor's state: the latest records of the topics, in bounded memory.

``topic_reader`` and ``partition_readers`` read records, ``record_shapes`` decodes them, and
``monitor_tables`` merges them into ``entries`` and ``budget_history``.
"""
