ARG BASE=base/box
ARG SHARED=global
FROM ${BASE} AS one
ARG SHARED
RUN echo "one $SHARED" > /one
FROM ${BASE}
ARG SHARED=local
ARG OTHER=${SHARED}-more
RUN echo "two $SHARED $OTHER" > /two
COPY --from=one /one /
