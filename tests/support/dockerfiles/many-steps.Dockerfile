FROM base/box
RUN echo 1 > /log
RUN echo 2 >> /log
RUN echo 3 >> /log && mkdir /d1 && touch /d1/a
RUN echo 4 >> /log && mv /d1 /d2
RUN echo 5 >> /log && rm /d2/a
RUN echo 6 >> /log && touch /d2/b && chmod 700 /d2
RUN echo 7 >> /log && chown 5:5 /log
RUN echo 8 >> /log && ln /log /d2/log
