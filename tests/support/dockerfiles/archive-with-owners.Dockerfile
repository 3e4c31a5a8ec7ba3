FROM base/box
ADD --chown=7:8 hello.txt /owned/
ADD data.tar.gz plain.tar /unpacked/
ADD src /folder/
