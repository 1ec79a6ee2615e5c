"""Commands that plan and simulate streams."""
