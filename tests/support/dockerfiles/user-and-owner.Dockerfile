FROM base/box
RUN adduser -D -u 2000 agent 2>/dev/null || { echo agent:x:2000:2000::/home/agent:/bin/sh >> /etc/passwd; echo agent:x:2000: >> /etc/group; mkdir -p /home/agent; chown 2000:2000 /home/agent; }
COPY --chown=agent:agent tests /tests
COPY --chown=user files/a.txt /home/user/
USER agent
WORKDIR /home/agent/work
RUN id -u > /tmp/who && umask 077 && echo secret > /home/agent/key
