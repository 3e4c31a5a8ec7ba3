FROM base/box
RUN mkdir -p /data && i=0; while [ $i -lt 300 ]; do mkdir -p /data/$((i % 10)); echo $i > /data/$((i % 10))/$i; i=$((i + 1)); done
RUN rm -r /data/3 && rm /data/4/*4 && mkdir /data/3 && echo back > /data/3/back
COPY tests /data/4/
