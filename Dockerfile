# Two stages: the first builds, the second holds the binary, certificates and a place for prompts.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY src src
# The manifests name targets of the tests; the binary is built without them.
COPY tests/interop/rmcp tests/interop/rmcp
COPY tests/simulation tests/simulation
COPY benches benches
RUN cargo build --profile dist --locked --bin promptgate

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home promptgate
COPY --from=build /src/target/dist/promptgate /usr/local/bin/promptgate
WORKDIR /etc/promptgate
COPY gateway.toml ./
COPY examples examples
# The audit log lies on a volume of its own; its key is made beside the configuration unless PROMPTGATE_AUDIT_KEY is set.
RUN install -d -o promptgate /var/lib/promptgate && chown promptgate /etc/promptgate
ENV PROMPTGATE__AUDIT__PATH=/var/lib/promptgate/audit \
    PROMPTGATE__ADMIN__USAGE__PATH=/var/lib/promptgate/usage \
    PROMPTGATE__LOGINS__PATH=/var/lib/promptgate/logins
VOLUME /var/lib/promptgate
USER promptgate
EXPOSE 8080
# In a container loopback is nobody's, so it listens at all addresses, and does not start before gateway.toml has a way to
# authenticate callers. Behind a proxy that authenticates, set PROMPTGATE__SERVER__INSECURE=true.
ENV PROMPTGATE__SERVER__LISTEN=0.0.0.0:8080
# Whether it accepts connections: an upstream that is down does not make the gateway unhealthy.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
    CMD ["promptgate", "health", "--live"]
ENTRYPOINT ["promptgate"]
