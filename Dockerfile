# One image for every node of a cluster (cluster/README.md), or for the application on CPU:
#
#   docker build --build-arg HARDWARE=gpu --tag power-lever:gpu .
#   docker build --build-arg TORCH_INDEX=URL --tag power-lever:cpu .    # URL: PyTorch's CPU wheel index
FROM python:3.11-slim-bookworm
ARG HARDWARE=cpu
ARG TORCH_INDEX=

# Triton and vLLM compile kernels where they run.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ libnuma1 && rm -rf /var/lib/apt/lists/*

WORKDIR /app
# As the Makefile does; the lists are complete, so no resolver.
COPY requirements requirements
RUN pip install --no-cache-dir pip==26.3 && \
    pip install --no-cache-dir --no-deps ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} -r requirements/$HARDWARE.txt
COPY pyproject.toml README.md serve_config.yaml ./
COPY bench bench
COPY cluster cluster
COPY router router
COPY serve_app serve_app
COPY sustainability sustainability
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable .

# What NVIDIA's container runtime brings in from the node.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV MODELS_DIR=/models
# cluster/serve.env, for whatever starts Ray here.
ENV RAY_SERVE_ENABLE_HA_PROXY=1 \
    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=serve_app.door.before_serve \
    RAY_SERVE_THROUGHPUT_OPTIMIZED=1 \
    RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S=60 \
    RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S=930 \
    RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S=900 \
    RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S=120 \
    RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=120 \
    RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S=30 \
    RAY_worker_niceness=0 \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S=1 \
    RAY_SERVE_HAPROXY_BINARY_PATH=/usr/local/bin/power-lever-haproxy
RUN useradd --create-home --uid 1000 ray && install --directory --owner ray /models
USER ray
# `docker stop --time 600` lets streams finish; a second SIGTERM, or SIGINT, stops at once.
CMD ["python", "-m", "serve_app", "serve", "serve_config.yaml"]
