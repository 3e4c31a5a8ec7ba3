FROM scratch
COPY files/a.txt /a/b/c.txt
COPY src/ /src/
WORKDIR /data
ENV ONLY=this
