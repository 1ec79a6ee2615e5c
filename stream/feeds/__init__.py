"""From people's events to questions: feeds count each partition's windows, merging adds them up and asks."""
