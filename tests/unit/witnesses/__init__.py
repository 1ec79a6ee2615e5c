"""Tests of witnesses, and of the guards that compare with them."""
