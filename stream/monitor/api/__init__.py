"""The monitor's HTTP API and web server.

A request passes ``http_requests``, ``server`` (token, limits) and ``routes``, whose handlers are in ``views``,
``source_views``, ``budget_views``, ``forms`` and ``question_routes``; the answers' types are in ``*models``.
"""
