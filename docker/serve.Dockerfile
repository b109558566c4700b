# The daemon alone, from the same Debian package that a host installs. From the root of the checkout:
#   docker build -f docker/serve.Dockerfile -t reinet-serve .
FROM debian:12 AS build
COPY . /src
WORKDIR /src
RUN PYTHON=/usr/bin/python3 docker/packages.sh --serve && docker/build-deb.sh /out

FROM debian:12-slim
COPY --from=build /out /tmp/reinet
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/reinet/reinet_*.deb \
    && rm -rf /tmp/reinet /var/lib/apt/lists/*
ENTRYPOINT ["reinet"]
CMD ["serve", "/etc/reinet/daemon.toml"]
