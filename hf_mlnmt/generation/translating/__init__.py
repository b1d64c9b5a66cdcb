"""The translation pipeline: texts in, translations out; its batches, options and engines."""
