"""How accurate many answers about one table are for the same budget: `pmw` beside everything else that could be asked."""
