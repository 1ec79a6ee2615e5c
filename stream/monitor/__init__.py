"""The monitor: a Faust app that reads the services' topics and serves the page, API and metrics.

``monitor_service`` starts it. ``topic_readers`` and ``monitor_alerts`` read records, ``record_shapes`` decodes them,
and ``monitor_tables`` merges them, in bounded memory, into ``entries``, ``stream_totals`` and ``budget_history``. ``api``
serves these to ``static``, the page.
"""
