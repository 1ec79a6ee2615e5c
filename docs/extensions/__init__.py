"""What this site adds to Sphinx."""
