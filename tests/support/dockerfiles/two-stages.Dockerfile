ARG TAG=latest
FROM base/box:${TAG} AS build
ARG VERSION=1.2
WORKDIR /src
COPY src/ ./
RUN cat main.c lib/util.c > /out.bin && echo "$VERSION" >> /out.bin && chmod 700 /out.bin
FROM base/box AS unused
RUN exit 1
FROM base/box
LABEL version="1" description="two  words"
COPY --from=build /out.bin /usr/local/bin/tool
COPY --from=0 --chown=1000:10 /src /srv/
ENTRYPOINT ["/usr/local/bin/tool"]
CMD ["--help"]
