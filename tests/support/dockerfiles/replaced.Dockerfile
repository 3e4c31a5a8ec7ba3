FROM base/box
RUN mkdir -p /x/was-folder/in /x/keep && echo f > /x/was-file && ln -s keep /x/was-link
RUN rm -r /x/was-folder && echo now > /x/was-folder && rm /x/was-file && mkdir /x/was-file && touch /x/was-file/in
RUN rm /x/was-link && mkdir /x/was-link && rmdir /x/keep && ln -s was-link /x/keep
RUN mv /x /y
