"""Sends committed alerts to webhooks and to Alertmanager; start at ``alert_service``."""
