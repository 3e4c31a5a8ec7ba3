FROM base/box
RUN echo 'worker:x:1500:1500::/home/worker:/bin/sh' >> /etc/passwd && echo 'worker:x:1500:' >> /etc/group && mkdir -p /home/worker && chown worker:worker /home/worker
USER worker
RUN id -u > /home/worker/id && echo $HOME > /home/worker/home
USER root
RUN id -u > /root/id
USER 4321
RUN id -u > /tmp/id
USER user:wheel
RUN id -g > /tmp/gid
