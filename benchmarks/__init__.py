"""How fast Sotto is, beside other stream processors on the same broker."""
