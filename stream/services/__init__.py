"""The services: workers, the budget service and feeds, ready to run."""
