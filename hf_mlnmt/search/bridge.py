"""The decoders of the attention bridge, as the loops of a search take them: recurrent ones, or the baseline's."""

from typing import Any

from hf_mlnmt.search.lstm import LSTMDecoder
from hf_mlnmt.search.transformer import TransformerDecoder


class BridgeDecoder:
    """`LSTMDecoder` or `TransformerDecoder`, as the model's decoders are."""

    def __new__(cls, model: Any, arguments: dict[str, Any]) -> Any:
        return _kind(model)(model, arguments)

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """What of the model its decoder cannot compute, or None."""
        return _kind(model).why_not(model, arguments)


def _kind(model: Any) -> Any:
    return LSTMDecoder if model.config.coders == "rnn" else TransformerDecoder
