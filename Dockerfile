# The viewer in an image; at run time it needs no network, and of the host only the journals.
#
#   docker build -t disttrace .
#   docker run --rm --network none --user "$(id -u):$(id -g)" -v "$PWD/disttrace-out:/journals:ro" disttrace
#
# Journals are readable for their owner alone (DISTTRACE_FILE_MODE), hence --user. A command other than
# `diagnose` stands behind the image's name; what `export -o` writes needs a folder that is mounted.
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
# Pure Python: only recording uses what is compiled.
RUN CC=/nonexistent pip wheel --no-cache-dir --wheel-dir /wheels '.[viewer,cluster]'

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'disttrace[viewer,cluster]'
# Modules are compiled by `pip install`, so nothing is written at run time.
ENV DISTTRACE_DIR=/journals PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /tmp
USER 65534:65534
ENTRYPOINT ["disttrace"]
CMD ["diagnose"]
