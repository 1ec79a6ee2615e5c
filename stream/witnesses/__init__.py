"""Witnesses: places outside Kafka that keep anchors, the heads of the audit trail."""
