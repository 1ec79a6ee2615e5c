"""Witnesses, and the guards that compare with them."""
