FROM base/box
ARG UNSET
ARG SET=value
ENV A=$SET B=${UNSET:-fallback} C=${SET:+other} D="quoted $SET" E='single $SET' F=\$SET G=a\ b
ENV H="${A}-${B}" I=
RUN env | grep -E '^[A-I]=' | sort > /env
LABEL a=$A b="$B" c='$C' d=${I:-empty}
