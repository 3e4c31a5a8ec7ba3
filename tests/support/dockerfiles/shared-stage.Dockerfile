FROM base/box AS common
WORKDIR /opt/common
RUN echo common > file
FROM common AS left
RUN echo left > left
FROM common AS right
RUN echo right > right
FROM common
COPY --from=left /opt/common/left .
COPY --from=right /opt/common/right ./
COPY --from=common /opt/common /elsewhere
