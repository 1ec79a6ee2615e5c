"""Feeds count each partition's windows; merging adds the counts and asks the questions."""
