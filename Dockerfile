# syntax=docker/dockerfile:1

FROM python:3.12-slim AS build
RUN python -m venv /opt/sotto
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY sotto sotto
COPY stream stream
RUN --mount=type=cache,target=/root/.cache/pip \
    # Without the local broker and its Java runtime: containers are given the address of a Kafka.
    /opt/sotto/bin/pip install --disable-pip-version-check '.[monitor,worker]' \
    && /opt/sotto/bin/pip uninstall --yes pip

FROM python:3.12-slim
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin sotto
COPY --from=build /opt/sotto /opt/sotto
ENV PATH=/opt/sotto/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /data
USER 10001
ENTRYPOINT ["sotto"]
CMD ["--help"]
