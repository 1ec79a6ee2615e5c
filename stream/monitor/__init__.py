"""The monitor: a Faust app that reads what the services publish, and answers people, dashboards and alerts."""
