"""Budgets and accuracy: costs, the ledger, composition, the planner."""
