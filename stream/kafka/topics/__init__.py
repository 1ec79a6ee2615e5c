"""Defines, creates, checks and protects an installation's topics; start at ``layouts``."""
