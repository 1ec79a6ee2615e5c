"""The budget service's role: requests and charges in, ledger and control out."""

from stream.processors.budget.processor import BudgetProcessor

__all__ = ["BudgetProcessor"]
