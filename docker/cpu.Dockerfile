# SmartGen on a CPU: prefill, decode and router are three containers of this one image.
# Build from the repository root: docker build -f docker/cpu.Dockerfile -t smartgen-cpu .
FROM debian:12-slim

# libcurl4, libibverbs1, libnuma1: Mooncake links against them. g++ and python3-dev: the kernels are built here.
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
        ca-certificates g++ libcurl4 libibverbs1 libnuma1 python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/smartgen

COPY . .

RUN PIP_NO_CACHE_DIR=1 scripts/install --cpu

ENV PATH=/opt/smartgen/.venv/bin:$PATH \
    SMARTGEN_CACHE=/var/cache/smartgen

# The default model becomes part of the image: containers need no network but their own.
RUN smartgen model fetch

CMD ["smartgen", "--help"]
