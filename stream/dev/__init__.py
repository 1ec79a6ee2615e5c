"""Tools for developers and operators: demo, audit, simulation, contract export, backup.

``contract_events`` and ``contract_files`` generate the published contract (JSON Schemas, AsyncAPI)
and compare it with its release. ``backup_file`` backs up the ledger, its trail and the workers'
changelog, and ``ledger_restoration`` restores them.
"""
