"""The engine: runs processors on input partitions, each input record exactly once.

Order of reading: ``group_engine`` joins the group, ``partition_task`` runs one partition,
``session`` restores it, ``batch_loop`` processes its records, and ``writer`` commits.
"""
