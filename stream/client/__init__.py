"""The clients, which ask questions and send requests; read ``client_calls`` first."""
