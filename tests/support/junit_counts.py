"""Prints "passed failed skipped" of a JUnit file that pytest wrote."""

import sys
import xml.etree.ElementTree as ElementTree


def main() -> None:
    passed = failed = skipped = 0
    for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    print(passed, failed, skipped)


main()
