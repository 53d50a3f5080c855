# farm for CI runners: `farm bench`, `farm check` and so on, with the agents of all architectures and emulated boards.
#
#   tools/wheel
#   docker build --tag farm .
#   docker run --rm --volume "$PWD:/work" --volume farm-cache:/cache farm bench --device host digits --quick
#
# Runs as a user without rights. Builds are kept in /cache: name a volume for it. Boards by SSH need the runner's keys, for example
# --volume "$HOME/.ssh:/home/farm/.ssh:ro"; for models from PyTorch: --build-arg EXTRA=torch
FROM python:3.13-slim-bookworm

# qemu-user runs emulated boards, adb reaches Android boards.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends adb qemu-user \
    && rm --recursive --force /var/lib/apt/lists/*

ARG EXTRA=""
COPY dist/tvm_farm-*.whl /tmp/
RUN python -m venv /opt/farm \
    && /opt/farm/bin/pip install --no-cache-dir "$(echo /tmp/tvm_farm-*.whl)${EXTRA:+[$EXTRA]}" \
    && rm /tmp/tvm_farm-*.whl

RUN useradd --create-home --uid 1000 farm && mkdir /cache /work && chown 1000:1000 /cache /work
USER 1000:1000
ENV PATH=/opt/farm/bin:$PATH FARM_CACHE=/cache
WORKDIR /work
ENTRYPOINT ["farm"]
CMD ["--help"]
