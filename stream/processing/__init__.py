"""What the processors of all roles have in common."""
