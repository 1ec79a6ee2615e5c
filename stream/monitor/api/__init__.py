"""The monitor's HTTP API and web server.

A request passes ``connections``, ``server`` (token, limits) and ``routes``, whose handlers are in ``views``,
``listing``, ``budget_views``, ``forms`` and ``question_routes``; the answers' types are in ``*models``.
"""
