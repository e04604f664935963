# syntax=docker/dockerfile:1

FROM rust:1.95-slim-bookworm AS build
WORKDIR /weir
COPY . .
# Downloaded crates and compiled dependencies live in cache mounts, not in layers: a change of the sources
# or of Cargo.lock recompiles only what changed. The mounts are gone after the step, so the binary is copied
# out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/weir/target,sharing=locked \
    cargo build --release --locked --bin weir \
    && install -D -m 0755 target/release/weir /out/weir

# glibc, CA certificates and time zones, a user without rights (65532), and no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/weir /usr/bin/weir
# The default configuration; mount your own over it.
COPY conf/packaged.yaml /etc/weir/weir.yaml

EXPOSE 8080
# QUIT lets requests in flight finish. Give `docker stop` slightly more time than `shutdown_timeout`.
STOPSIGNAL SIGQUIT
# Asks the admin listener inside the container; needs `admin.listen`.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["/usr/bin/weir", "health", "--admin", "127.0.0.1:9900"]

ENTRYPOINT ["/usr/bin/weir"]
CMD ["run", "--config", "/etc/weir/weir.yaml"]
