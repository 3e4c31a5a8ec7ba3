FROM base/box
ENV A=1
ENV B=${A:+set} C="${X:-none}" D=$A$A
LABEL org.example.name=task org.example.b="$B"
EXPOSE 8080 53/udp
VOLUME /data /cache
STOPSIGNAL SIGINT
USER 1000:1000
WORKDIR /srv
WORKDIR relative/path
ENTRYPOINT ["sh", "-c"]
CMD ["env"]
