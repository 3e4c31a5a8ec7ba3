FROM base/box
ENV DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
RUN mkdir -p /app/data /logs /solution && chmod 1777 /logs
WORKDIR /app
COPY tests/ /tests/
COPY files/a.txt hello.txt ./data/
COPY --chmod=755 src/run.sh /usr/local/bin/run-task
RUN for i in 1 2 3 4 5; do printf 'row %s\n' "$i" >> data/rows.csv; done \
 && chmod 600 data/rows.csv \
 && ln -s /app/data /data
CMD ["sleep", "infinity"]
