FROM base/box
ADD data.tar.gz /data/
ADD plain.gz /data/
ADD requirements.txt /data/list
