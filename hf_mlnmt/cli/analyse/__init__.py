"""Look into models: attention, parts left out, probes, embeddings, costs, curves of trainings."""

PANEL = "Look into a model"
