"""Kafka: an installation's topics, a local broker for demos and tests, and the client.

``topic_layouts`` says what topics there are, ``topic_creation`` makes and checks them, ``acls`` protects them.
Read ``local_broker`` first about a Kafka on this machine. ``client`` adapts the library aiokafka.
"""
