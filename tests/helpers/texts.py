"""Texts of any script, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

RANGES = {
    "latin": (0x20, 0x24F),
    "greek": (0x370, 0x3FF),
    "cyrillic": (0x400, 0x4FF),
    "hebrew": (0x590, 0x5FF),
    "arabic": (0x600, 0x6FF),
    "devanagari": (0x900, 0x97F),
    "thai": (0xE00, 0xE7F),
    "hangul": (0xAC00, 0xD7A3),
    "kana": (0x3040, 0x30FF),
    "han": (0x4E00, 0x9FFF),
    "emoji": (0x1F300, 0x1FAFF),
    "marks": (0x300, 0x36F),
}
LETTERS = st.one_of(*[st.characters(min_codepoint=low, max_codepoint=high) for low, high in RANGES.values()])
SPACES = st.sampled_from([" ", "  ", "\t", "\n", "\u00a0", "\u2028", "\u3000", "▁"])
ANYTHING = st.characters(exclude_categories=("Cs",))
TEXTS = st.lists(
    st.one_of(LETTERS, LETTERS, SPACES, ANYTHING, st.sampled_from(["<0x41>", "<", "0x41>", "the", "Der"])), max_size=30
)
