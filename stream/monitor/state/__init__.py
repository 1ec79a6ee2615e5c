"""The monitor's state: the latest records of the topics, in bounded memory.

``topic_reader`` reads records, ``record_shapes`` decodes them, and ``monitor_tables`` merges them into ``entries``.
"""
