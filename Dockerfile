# docker build -t overdrive .                        for processors
# docker build --target cuda -t overdrive-cuda .     with CUDA's libraries; the driver is the host's
#
# docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" overdrive bench model.onnx

FROM rust:1.95.0-slim-bookworm AS build
# The image's own toolchain, not a second one with the components of rust-toolchain.toml.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package overdrive \
    && strip --strip-all target/release/overdrive \
    && mkdir /licences \
    && cp LICENSE-* crates/overdrive-report/assets/*.LICENSE* crates/overdrive-report/assets/*.NOTICE /licences/

# The runtime image has NVRTC and cuBLASLt; the NVIDIA Container Toolkit brings libcuda at `--gpus`.
FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04 AS cuda
COPY --from=build /src/target/release/overdrive /usr/local/bin/overdrive
COPY --from=build /licences /usr/share/doc/overdrive/
# Writable to any --user: the caches of kernels and engines.
RUN mkdir -m 1777 /cache
ENV OVERDRIVE_CACHE=/cache NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["overdrive"]
CMD ["--help"]

FROM debian:bookworm-slim AS cpu
COPY --from=build /src/target/release/overdrive /usr/local/bin/overdrive
COPY --from=build /licences /usr/share/doc/overdrive/
RUN mkdir -m 1777 /cache
ENV OVERDRIVE_CACHE=/cache
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["overdrive"]
CMD ["--help"]
