"""Models for other engines (CTranslate2, ONNX Runtime), and models with auxiliary decoders as plain ones."""
