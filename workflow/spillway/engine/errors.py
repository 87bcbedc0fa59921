"""What can go wrong with a server, each as an error that says what was found and what to do next."""


class ServerError(RuntimeError):
    """A server could not be started, kept or stopped."""


class ServerDied(ServerError):
    """The server's process has ended although nobody asked it to; the message ends with its last log lines."""


class ServerNotReady(ServerError):
    """The server runs but did not prove that it serves; `stage` is `health`, `prefill` or `decode`."""

    def __init__(self, stage: str, found: str, log: str) -> None:
        super().__init__(f"server not ready: {stage}: {found}\n{log}")
        self.stage = stage


class LeftoverServer(ServerError):
    """A server that an earlier run left behind is still up; the message names its processes and how to stop them."""


class ServerWouldNotStop(ServerError):
    """Processes of the server outlived SIGKILL; the message names them."""
