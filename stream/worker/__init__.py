"""The worker: answers the queries of its partitions.

Order of reading: ``worker_processor``, ``hosted_streams``, ``admission``, ``families``,
``answer_publishing``.
"""
