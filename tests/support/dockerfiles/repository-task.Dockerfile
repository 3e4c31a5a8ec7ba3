FROM base/box AS source
COPY src /testbed/src
COPY tests /testbed/tests
RUN cd /testbed && touch -d '2021-03-04 05:06:07' src/main.c && mkdir .state && echo ref > .state/HEAD
FROM base/box
ARG COMMIT=3f2c9d1
ENV REPO=/testbed \
    COMMIT=${COMMIT}
COPY --from=source /testbed ${REPO}
WORKDIR ${REPO}
RUN echo "$COMMIT" > .state/commit && rm -rf tests/sub && find . -name '*.py' -exec chmod 644 {} +
ENTRYPOINT ["/bin/sh", "-lc"]
