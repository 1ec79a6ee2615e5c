"""Witnesses: places outside Kafka that keep anchors, which are heads of the audit trail."""
