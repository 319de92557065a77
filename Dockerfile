# syntax=docker/dockerfile:1
# Two stages: the first builds, the second holds the binary, git with ssh, certificates and a place for prompts. For a release, pin both images
# by their digests (docker buildx imagetools inspect).
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY src src
# The manifests name targets of the tests; the binary is built without them.
COPY tests/interop/rmcp tests/interop/rmcp
COPY tests/simulation tests/simulation
COPY benches benches
# Dependencies that have not changed are neither fetched nor compiled again. Own files are newer than what another checkout built.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    find crates src -type f -exec touch {} + \
    && cargo build --profile dist --locked --bin promptgate && cp target/dist/promptgate /promptgate

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="promptgate" \
    org.opencontainers.image.description="One endpoint in front of every MCP prompt server" \
    org.opencontainers.image.source="https://github.com/promptgate/promptgate" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --home-dir /var/lib/promptgate promptgate
COPY --from=build /promptgate /usr/local/bin/promptgate
WORKDIR /etc/promptgate
COPY gateway.toml ./
COPY examples/library examples/library
COPY examples/support examples/support
# The audit log lies on a volume of its own; its key is made beside the configuration unless PROMPTGATE_AUDIT_KEY is set.
RUN install -d -o promptgate /var/lib/promptgate && chown promptgate /etc/promptgate
ENV PROMPTGATE__AUDIT__PATH=/var/lib/promptgate/audit \
    PROMPTGATE__ADMIN__USAGE__PATH=/var/lib/promptgate/usage \
    PROMPTGATE__LOGINS__PATH=/var/lib/promptgate/logins
VOLUME /var/lib/promptgate
# A number, so that `runAsNonRoot` of Kubernetes accepts it.
USER 10001
EXPOSE 8080
# In a container loopback is nobody's, so it listens at all addresses, and does not start before gateway.toml has a way to
# authenticate callers. Behind a proxy that authenticates, set PROMPTGATE__SERVER__INSECURE=true.
ENV PROMPTGATE__SERVER__LISTEN=0.0.0.0:8080
# Whether it accepts connections: an upstream that is down does not make the gateway unhealthy.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["promptgate", "health", "--live"]
ENTRYPOINT ["promptgate"]
