"""What a person asked for: the scenario model, its loader, and the plan made of it."""
