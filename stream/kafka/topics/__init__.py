"""The topics of an installation: their layout, creation, checks and access control."""
