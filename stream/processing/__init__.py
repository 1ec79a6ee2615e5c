"""Modules that the processors of all roles share."""
