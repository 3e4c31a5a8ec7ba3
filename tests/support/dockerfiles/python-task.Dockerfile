# syntax=docker/dockerfile:1
FROM base/box
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PATH="/opt/venv/bin:$PATH"
WORKDIR /app
COPY requirements.txt .
RUN mkdir -p /opt/venv/bin && \
    # what pip would leave
    while read -r name; do echo "$name" > "/opt/venv/bin/$name"; done < requirements.txt && \
    chmod 755 /opt/venv/bin/*
COPY . .
CMD ["python", "-m", "app"]
