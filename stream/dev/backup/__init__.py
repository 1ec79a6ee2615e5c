"""Backups: the ledger, its trail and the workers' changelog in one file, taken from and brought back to Kafka.

``files`` is the form of the file, ``taking`` reads an installation into one, ``checking`` says whether it is whole and whether
its ledger follows from its trail, ``returning`` brings it back into empty topics.
"""
