"""How a request can fail, seen from the client."""


class RequestFailed(Exception):
    """A server refused or broke off a request.

    where   which server: "prefill", "decode" or "router"
    status  HTTP status, or the status inside an error event; None when the connection broke
    """

    def __init__(self, where: str, status: int | None, reason: str) -> None:
        super().__init__(f"{where} answered {status or 'nothing'}: {reason}")
        self.where = where
        self.status = status
        self.reason = reason
