FROM base/box AS strict
SHELL ["/bin/sh", "-eu", "-c"]
FROM strict
RUN echo $- > /flags
