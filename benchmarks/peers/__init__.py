"""Other stream processors doing the workers' job."""
