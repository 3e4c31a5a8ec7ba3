FROM base/box AS first
ENTRYPOINT ["first"]
CMD ["inherited"]
FROM first AS second
CMD ["own"]
FROM second
ENTRYPOINT exec second $0
