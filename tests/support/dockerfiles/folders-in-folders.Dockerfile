FROM base/box
ENV TOP=/srv
WORKDIR $TOP
WORKDIR app
WORKDIR ./sub/../other
RUN pwd > where
WORKDIR ${TOP}/app
COPY hello.txt .
