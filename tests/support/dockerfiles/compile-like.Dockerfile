FROM base/box AS build
WORKDIR /build
COPY src/main.c src/
COPY src/lib src/lib
RUN set -e; \
    mkdir -p obj; \
    # a comment between lines
    for f in src/main.c src/lib/util.c; do \
      md5sum "$f" > "obj/$(basename "$f" .c).o"; \
    done; \

    cat obj/*.o > prog; \
    chmod 755 prog
RUN mkdir -p /stage/usr/bin /stage/etc && cp prog /stage/usr/bin/ && echo conf > /stage/etc/prog.conf
FROM scratch
COPY --from=build /stage/ /
ENTRYPOINT ["/usr/bin/prog"]
