FROM base/box
COPY links/ /l/
COPY ["hello.txt", "file1.md", "/with blanks/"]
COPY files/*.txt *.md /globbed/
COPY tests/[!a]* /negated/
