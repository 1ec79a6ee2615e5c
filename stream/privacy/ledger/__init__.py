"""The ledger: budgets, accounts and grants as a pure state machine."""
