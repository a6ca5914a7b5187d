"""Print what a shell needs to complete `kubectl-kvserving`.

`kubectl kvserving` itself is completed by kubectl's own completion, which finds the program
kubectl_complete-kvserving on PATH: nothing has to be set up for it.
"""

import argparse

from argcomplete.shell_integration import shellcode

from kvserving_kubectl.context import Context

SHELLS = ("bash", "zsh", "fish", "powershell")
PROGRAM = "kubectl-kvserving"


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("shell", choices=SHELLS)


def run(context: Context) -> None:
    """Print it."""
    shell = context.options.shell
    script = shellcode([PROGRAM], shell=shell)
    context.out.print(script, markup=False, highlight=False, soft_wrap=True)
