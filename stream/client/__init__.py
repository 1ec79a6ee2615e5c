"""The clients, which ask questions and send requests; start at ``client_calls``."""
