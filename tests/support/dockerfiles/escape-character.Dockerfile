# escape=`
from base/box
env ONE=1 `
    TWO=2
run echo "$ONE" > /one && `
    echo "$TWO" > /two
copy hello.txt c:/odd/
cmd echo `$ONE
