"""Commands that plan and simulate streams before they are opened."""
