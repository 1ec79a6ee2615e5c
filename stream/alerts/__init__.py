"""Sends committed alerts to webhooks and to Alertmanager; read ``alert_service`` first."""
