"""CTranslate2 as the engine that searches in the place of generate(), where it is asked for.

| file | what is in it |
| --- | --- |
| conversion.py | the baseline's weights under CTranslate2's names |
| cache.py | converted models, kept in the user's cache by what is in them |
| request.py | what generate() was asked, in CTranslate2's words, or what of it CTranslate2 has not |
| translator.py | a loaded model: searches, and scores of given translations |
"""

from hf_mlnmt.engine.request import Request, request_of
from hf_mlnmt.engine.translator import Translator, installed

__all__ = ["Request", "Translator", "installed", "request_of"]
