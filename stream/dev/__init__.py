"""Tools for developers and operators: demo, audit, simulation, contract export, backup.

``contract_events`` and ``contract_files`` generate the published contract (JSON Schemas, AsyncAPI)
and compare it with its release. ``backup_file`` and ``backup_transfer`` back up and restore the
ledger, its trail and the workers' changelog.
"""
