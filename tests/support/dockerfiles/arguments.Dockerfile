ARG BASE=base/box
FROM ${BASE}
ARG NAME
ARG GREETING=hello
ENV NAME=${NAME:-nobody}
RUN echo "$GREETING $NAME" > /greeting
COPY ${GREETING}.txt /
