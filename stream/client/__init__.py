"""The clients: register sources, open streams, ask questions, read answers and budgets."""
