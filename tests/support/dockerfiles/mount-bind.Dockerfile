FROM base/box AS tools
RUN mkdir -p /opt/tools && echo tool > /opt/tools/tool && chmod 755 /opt/tools/tool
FROM base/box
WORKDIR /work
RUN --mount=type=bind,source=src,target=/mnt/src --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    cat /mnt/src/main.c /mnt/src/lib/util.c > all.c && cp /opt/tools/tool /usr/local-tool
