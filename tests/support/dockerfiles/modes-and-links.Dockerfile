FROM base/box
COPY --chmod=0750 src/main.c src/run.sh /opt/bin/
COPY links /opt/links/
COPY src/run.sh /usr/bin/run-it
RUN ln -s /opt/bin/run.sh /bin/run && ln /opt/bin/main.c /opt/hard && chmod 4755 /usr/bin/run-it
