# Build: docker build -t standalone-cinder .
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY main.go ./
COPY policy ./policy
COPY backends ./backends
COPY mappers ./mappers
COPY provisioner ./provisioner
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o /standalone-cinder .

# Only the program and the certificate authorities: no shell, and no user other
# than the one it runs as.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /standalone-cinder /standalone-cinder
USER 65532:65532
ENTRYPOINT ["/standalone-cinder"]
CMD ["run", "--policy=/etc/standalone-cinder/policy/policy.yaml"]
