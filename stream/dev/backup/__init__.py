"""Backups of ledger, trail and workers' changelog: ``backup_file`` is the format, ``backup_transfer`` exports and restores."""
