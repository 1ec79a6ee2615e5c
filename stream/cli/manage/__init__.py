"""Commands that manage sources, budgets and streams, ask questions and read answers."""
