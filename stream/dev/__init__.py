"""Developers' and operators' tools: demo, audit, simulation, contract export, backup."""
