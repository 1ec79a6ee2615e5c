"""Mechanisms as pure functions of integers: no noise is drawn and nothing is read or written here."""
