FROM base/box
COPY *.txt file?.md /docs/
COPY tests/[a-m]*.py /tests/
COPY files /files/
