"""The search on a GPU: steps of static shapes, captured as CUDA graphs (static_shapes.py), and Triton kernels that
choose the beams of a step (kernels.py)."""
