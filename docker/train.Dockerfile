# Everything: training, evaluation, TensorBoard. From the root of the checkout:
#   docker build -f docker/train.Dockerfile -t reinet-train .
FROM debian:12
COPY . /src
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates && docker/setup.sh /opt/reinet \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/reinet/bin:$PATH
CMD ["reinet", "--help"]
