FROM base/box
RUN --mount=type=cache,target=/root/.cache/pip touch /root/.cache/pip/wheel && echo installed > /installed
RUN --mount=type=cache,target=/root/.cache/pip ls -A /root/.cache/pip | wc -l > /none-or-one; rm /none-or-one
