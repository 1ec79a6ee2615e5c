"""Backups of the ledger, its trail and the workers' changelog."""
