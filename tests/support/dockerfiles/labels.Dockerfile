FROM base/box
LABEL maintainer="someone <a@b.example>" \
      version=1.0 \
      "quoted key"="quoted value"
LABEL multi="one \
two" empty=""
LABEL version=2.0
