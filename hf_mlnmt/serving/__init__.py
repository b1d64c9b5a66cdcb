"""Translation as a service: models that stay loaded, batches across requests, an HTTP API, a page (extra `serve`)."""
