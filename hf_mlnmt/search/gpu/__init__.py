"""The GPU floor of the search: steps of static shapes, captured as CUDA graphs (static_shapes.py), and the Triton
kernels of their choice of tokens (kernels.py)."""
