FROM base/box
RUN mkdir /sticky /setgid && chmod 1777 /sticky && chmod 2755 /setgid && chown 0:10 /setgid
RUN umask 027 && mkdir -p /deep/er/est && echo x > /deep/er/est/file && mkfifo /deep/pipe
RUN echo set > /setuid && chmod 4711 /setuid && chown 1000:1000 /deep/er
RUN cp -p /setuid /copy && ln /copy /deep/hard
