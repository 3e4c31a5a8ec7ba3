FROM base/box AS parent
WORKDIR /app
ONBUILD COPY requirements.txt ./
ONBUILD RUN wc -l < requirements.txt > count
ONBUILD ENV COUNTED=yes
FROM parent
RUN test "$COUNTED" = yes && cat count > twice && cat count >> twice
