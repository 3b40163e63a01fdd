# The image, for those who have Docker:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 \
#     --build-arg COMMIT=$(git rev-parse HEAD) --tag registry.example/standalone-cinder:v0.1.0 --push .
#
# `make release` builds it without Docker or a base image, and reproducibly.
#
# A tag can be moved to another image. To build with one that you have checked,
# give its digest: `docker buildx imagetools inspect golang:1.26-bookworm` prints
# it, and --build-arg GO_IMAGE=golang:1.26-bookworm@sha256:... uses it.
ARG GO_IMAGE=golang:1.26-bookworm
ARG VERSION=v0.0.0-dev
ARG COMMIT=unknown

# Go cross-compiles for the target on the builder's own platform.
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
ARG COMMIT
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -tags grpcnotrace -trimpath -buildvcs=false \
      -ldflags "-s -w -buildid= -X main.version=$VERSION -X main.commit=$COMMIT" -o /standalone-cinder .

# Only the program and the certificate authorities: no shell, and no user other
# than the one it runs as.
FROM scratch
ARG VERSION
ARG COMMIT
LABEL org.opencontainers.image.title="standalone-cinder" \
      org.opencontainers.image.description="Cinder volumes for Kubernetes clusters that do not run on OpenStack" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/standalone-cinder/standalone-cinder" \
      org.opencontainers.image.url="https://github.com/standalone-cinder/standalone-cinder" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /LICENSE
COPY --from=build /standalone-cinder /standalone-cinder
USER 65532:65532
ENTRYPOINT ["/standalone-cinder"]
CMD ["run", "--policy=/etc/standalone-cinder/policy/policy.yaml"]
