FROM base/box
SHELL ["/bin/sh", "-e", "-c"]
RUN echo one > /one; echo two > /two
RUN ["/bin/sh", "-c", "echo $0 > /three", "zero"]
ENV GREETING='hello world' EMPTY=
RUN echo "$GREETING${EMPTY:-!}" > "/four"
CMD ["echo", "$GREETING"]
