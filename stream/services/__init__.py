"""Runs the services; ``runner`` starts one, ``processes`` starts several as child processes."""
