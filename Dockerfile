# The server, for CPUs. Nothing is written but to /tmp, and nobody is root:
#
#   docker build -t hf-mlnmt .
#   docker run --rm --read-only --tmpfs /tmp:exec -p 127.0.0.1:5000:5000 -v "$PWD/runs/demo/average:/models:ro" hf-mlnmt
#
# Several models: mount the folder that holds them, and name each behind the image: hf-mlnmt /models/en-de /models/de-en
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN ["python", "-m", "venv", "/venv"]
ENV PATH=/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt ./
RUN ["pip", "install", "--constraint", "constraints.txt", "--index-url", "https://download.pytorch.org/whl/cpu", "torch"]
COPY pyproject.toml README.md LICENSE ./
COPY modeling modeling
COPY training training
COPY hf_mlnmt hf_mlnmt
RUN ["pip", "install", "--constraint", "constraints.txt", ".[serve,spm]"]

FROM python:3.11-slim-bookworm
# The search compiles its inner loop for the processor that it runs on, into /tmp: hence gcc, and exec above.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN ["useradd", "--uid", "10001", "--no-create-home", "--home-dir", "/tmp", "--shell", "/usr/sbin/nologin", "server"]
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH HOME=/tmp HF_HOME=/tmp/huggingface PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 5000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5000/healthz', timeout=4)"]
ENTRYPOINT ["hf-mlnmt", "serve", "--host", "0.0.0.0", "--port", "5000"]
CMD ["/models"]
