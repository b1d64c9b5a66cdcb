"""What a training is told: the keys of a recipe, how they are read, and what they ask of one another."""
