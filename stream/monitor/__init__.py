"""The monitor: a Faust app that reads the services' topics and serves the page, API and metrics.

``monitor_service`` starts it, ``state`` reads and keeps records, ``api`` serves them to ``static``, the page.
"""
