"""Synthetic parallel text: back-translation and its relatives, and the journal by which they go on."""
