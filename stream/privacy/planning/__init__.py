"""Planning: calibrations of streams, their error bounds and prices, before anything is spent.

Start with `plans`, which calls the planner of each mechanism (`*_plans`). `choices` compares mechanisms,
and `inverse_plans` finds the ε for a requested error.
"""
