"""Translation server: loaded models, batches of texts of many requests, an HTTP API, a page (extra `serve`)."""
