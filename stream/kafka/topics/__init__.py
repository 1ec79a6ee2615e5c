"""Defines, creates, checks and protects the topics of an installation."""
