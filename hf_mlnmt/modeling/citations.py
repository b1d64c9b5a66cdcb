"""Citations that several files share: of the thesis on monolingual data, by chapter."""

_THESIS = """@phdthesis{rosendahl2024attention,
  title = {Attention-based Machine Translation Using Monolingual Data},
  author = {Rosendahl, Jan},
  school = {RWTH Aachen University},
  year = {2024},
  note = {Chapter %d}
}"""
MONOLINGUAL_DATA = _THESIS % 4
FIRST_ORDER_ATTENTION = _THESIS % 5
