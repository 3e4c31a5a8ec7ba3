FROM base/box AS served
HEALTHCHECK --interval=30s CMD ["test", "-e", "/tmp/ready"]
FROM served
RUN echo more > /more
