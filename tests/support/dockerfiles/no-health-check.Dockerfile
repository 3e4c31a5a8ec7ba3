FROM base/box AS served
HEALTHCHECK CMD true
FROM served
HEALTHCHECK NONE
CMD ["sh"]
