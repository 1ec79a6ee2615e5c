"""The monitor: a Faust app that reads the services' topics and serves the page, API and metrics."""
