"""Exports models to other engines (CTranslate2, ONNX, Firefox...), and models without their auxiliary decoders."""

from hf_mlnmt.export.exporting import FORMATS, Exported, export, write_single_decoder

__all__ = ["FORMATS", "Exported", "export", "write_single_decoder"]
