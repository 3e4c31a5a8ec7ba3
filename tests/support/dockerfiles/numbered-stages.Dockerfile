FROM base/box
RUN echo zero > /zero
FROM base/box
RUN echo one > /one
FROM base/box
COPY --from=0 /zero /
COPY --from=1 /one /
