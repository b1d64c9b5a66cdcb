"""The attention bridge in a search: the baseline's step, over k rows instead of a source."""

from hf_mlnmt.modeling.bridge import BridgeForConditionalGeneration, BridgeModel
from hf_mlnmt.search.steps.baseline import DecoderStep


class BridgeStep(DecoderStep):
    """The baseline's decoder; the model around it chooses between languages, which is done before a search."""

    family = (BridgeForConditionalGeneration, BridgeModel)
