FROM base/box
COPY src /app
RUN rm -r /app/lib /var/log && mkdir /var/log && rm /etc/group && echo new > /app/new
RUN rm /app/new && mkdir /app/lib && touch /app/lib/other
