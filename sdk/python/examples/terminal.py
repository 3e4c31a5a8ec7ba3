"""A terminal, without asyncio: what a person types goes to a shell in the sandbox, and what that shows comes back."""

import shutil
import sys
import threading

from libdsec.sync import DSecClient, DSecContainerRunArgs


def main() -> None:
    columns, rows = shutil.get_terminal_size()
    with DSecClient() as client, client.run_container(DSecContainerRunArgs("base/python")) as sandbox:
        with sandbox.start(["/bin/sh"], tty=True, rows=rows, columns=columns) as shell:
            def type_in() -> None:
                for line in sys.stdin:
                    shell.write(line)
                shell.write("\x04")

            threading.Thread(target=type_in, daemon=True).start()
            for output in shell:
                sys.stdout.buffer.write(output.data)
                sys.stdout.flush()


main()
