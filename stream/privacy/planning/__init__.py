"""Planning: calibrations of streams, their error bounds and prices, before anything is spent."""
