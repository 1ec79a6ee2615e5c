# syntax=docker/dockerfile:1

# Any image with Python 3.11 or later at python3, and its venv module.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
# What builds the image and is not part of it: pip, a C compiler out of a package for the kernel, and what lists the contents.
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/tools \
    && python3 -m venv --without-pip /opt/sotto \
    && /opt/tools/bin/pip install --disable-pip-version-check --no-compile 'cyclonedx-bom>=7.0' 'ziglang>=0.13'
ENV CC="/opt/tools/bin/python -m ziglang cc"
# Further extras, separated by commas, as README.md lists them: s3,postgresql,delta,duckdb,spark,clickhouse,oidc,timestamps …
ARG EXTRAS=
WORKDIR /source
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY schemas schemas
COPY sotto sotto
COPY stream stream
RUN --mount=type=cache,target=/root/.cache/pip \
    # Without the local broker and its Java runtime: containers are given the address of a Kafka.
    /opt/tools/bin/pip --python /opt/sotto/bin/python install --disable-pip-version-check \
        ".[monitor,worker${EXTRAS:+,$EXTRAS}]" \
    # The list of what is installed, in the CycloneDX form.
    && /opt/tools/bin/cyclonedx-py environment --output-reproducible --output-format JSON \
        --output-file /opt/sotto/sbom.cdx.json /opt/sotto/bin/python

FROM ${BASE}
# What can install packages is not needed any more: neither pip nor that which brings it back.
RUN groupadd --system --gid 10001 sotto \
    && useradd --system --uid 10001 --gid sotto --no-create-home --shell /usr/sbin/nologin sotto \
    && rm -rf /usr/local/bin/pip* /usr/local/lib/python3*/site-packages/pip* \
        /usr/local/lib/python3*/ensurepip /usr/lib/python3*/ensurepip /usr/share/python-wheels
COPY --from=build /opt/sotto /opt/sotto
ENV PATH=/opt/sotto/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /data
USER 10001
ENTRYPOINT ["sotto"]
CMD ["--help"]
