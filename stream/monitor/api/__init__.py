"""The monitor's HTTP API and web server: models, views, routes, tokens and limits."""
