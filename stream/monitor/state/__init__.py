"""The monitor's state: the latest records of the topics, in bounded memory.

``topic_readers`` and ``monitor_alerts`` read records, ``record_shapes`` decodes them, and
``monitor_tables`` merges them into ``entries`` and ``budget_history``.
"""
