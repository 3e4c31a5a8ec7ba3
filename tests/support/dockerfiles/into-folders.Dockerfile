FROM base/box
RUN mkdir -p /into/lib /plain && echo old > /into/lib/util.c && echo keep > /into/keep && chmod 711 /into
COPY src /into
COPY src/lib /into/lib
COPY hello.txt /plain
COPY hello.txt /new/deep/name.txt
COPY hello.txt /new/folder/
COPY files/a.txt tests/alpha_test.py /plain/
