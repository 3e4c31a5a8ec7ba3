FROM base/box
ENV NODE_ENV=production \
  NPM_CONFIG_LOGLEVEL=warn
RUN mkdir -p /usr/src/app/node_modules && chown -R 1000:1000 /usr/src/app
WORKDIR /usr/src/app
COPY --chown=1000:1000 requirements.txt package*.json hello.txt ./
USER 1000:1000
RUN for m in $(cat requirements.txt); do mkdir node_modules/$m; echo "{}" > node_modules/$m/package.json; done
COPY --chown=1000:1000 src ./src
EXPOSE 3000
CMD [ "node", "server.js" ]
