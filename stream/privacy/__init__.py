"""The arithmetic that guarantees privacy: noise, mechanisms, budgets.

Reading order: noise, mechanisms, accuracy, composition, planning, ledger.

Terms of all folders: ⊤ is a charged answer of a sparse vector (an ``above``, an update or a measurement), and ⊥ a free
answer. Noise and sensitivities are integers in steps of the grid. The *law* of noise is its distribution, its *rate* λ
the inverse of its scale, and its *reach* a bound that the noise exceeds only with a given probability.
"""
