FROM base/box AS made
RUN mkdir -p /a/b && echo data > /a/b/file && ln -s file /a/b/soft && ln -s /a/b /a/abs && ln -s ../b /a/b/loop && chmod 500 /a/b
FROM base/box
COPY --from=made /a /copied
COPY --from=made /a/abs/file /followed
COPY --from=made --chown=12:34 /a/b /owned/
