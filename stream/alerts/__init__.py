"""Alert hooks: committed alerts, taken to webhooks and to Alertmanager."""
