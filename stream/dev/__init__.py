"""Tools for developers and operators; no service imports them.

Each tool begins in one module:

- the demo, whose answers are checked: ``demo_run``, with ``demo_installation`` and ``mechanism_tour``
- the statistical audit of privacy: ``audit_cases``, ``shipped_cases``, ``auditor``, ``event_search``
- simulations before a stream is opened: ``simulation_run``, with ``simulation_inputs`` and ``true_answers``
- the published contract and its comparison with the release: ``contract_events``, ``contract_files``
- backups: ``backup_file`` saves ledger, trail and the workers' changelog; ``ledger_restoration`` restores them
"""
