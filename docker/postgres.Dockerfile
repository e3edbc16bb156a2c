# syntax=docker/dockerfile:1
# PostgreSQL with wal2json, from the official image and the packages of its own repository. From the repository's root:
#
#     docker build -f docker/postgres.Dockerfile -t cdcwatch-postgres:17 .
#     docker build -f docker/postgres.Dockerfile --build-arg PG_MAJOR=15 -t cdcwatch-postgres:15 .
#
# To pin it: --build-arg POSTGRES_IMAGE=postgres:17-bookworm@sha256:… (see docker/Dockerfile).
ARG PG_MAJOR=17
ARG POSTGRES_IMAGE=postgres:${PG_MAJOR}-bookworm

FROM ${POSTGRES_IMAGE}
# PG_MAJOR is in the image's own environment: the package fits the server, whatever the arguments were.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends "postgresql-${PG_MAJOR}-wal2json" \
    && rm -rf /var/lib/apt/lists/*
COPY sql/install.sql /usr/share/cdcwatch/install.sql
COPY docker/postgres/10-logical.sql docker/postgres/20-shop.sh /docker-entrypoint-initdb.d/
# The user postgres of the official image, which may run as it from the start.
USER 999:999
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=10 CMD ["pg_isready", "--quiet", "--host", "127.0.0.1"]
CMD ["postgres", "-c", "wal_level=logical", "-c", "max_slot_wal_keep_size=4GB"]
