"""Work on models: average checkpoints, fuse models, take auxiliaries out, calibrate confidences."""

PANEL = "Train"
