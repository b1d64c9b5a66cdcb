"""Models for other engines (CTranslate2, ONNX Runtime), and models with auxiliary decoders as plain ones."""

from hf_mlnmt.export.exporting import DTYPES, FORMATS, Exported, export, write_single_decoder

__all__ = ["DTYPES", "FORMATS", "Exported", "export", "write_single_decoder"]
