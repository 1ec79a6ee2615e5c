"""Defines, creates, checks and protects an installation's topics; read ``layouts`` first."""
