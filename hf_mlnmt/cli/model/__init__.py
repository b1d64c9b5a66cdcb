"""Make a model of models: average checkpoints, fuse models, take auxiliaries out."""

PANEL = "Train"
