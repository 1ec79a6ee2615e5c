"""Tools for developers and operators: demo, audit, simulation, contract export, backup."""
