FROM base/box
COPY src/run.sh /usr/local/bin/serve
EXPOSE 8000
HEALTHCHECK --interval=5m --timeout=3s --start-period=1m30s --retries=2 \
  CMD test -e /tmp/ready || exit 1
ENTRYPOINT ["/usr/local/bin/serve"]
