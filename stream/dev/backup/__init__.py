"""Backs up and restores the ledger, its trail and the workers' changelog."""
