FROM base/box
WORKDIR /app
ONBUILD COPY requirements.txt /app/
ONBUILD RUN wc -l < requirements.txt > count
CMD ["cat", "count"]
