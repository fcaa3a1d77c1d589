"""Rules at run time of steerd for Python programs: one call of the local API for many rules.

    daemon = Daemon("/run/steerd/api.sock")
    rule = {"id": "scan-1", "match": {"src": "198.51.100.7"}, "action": "drop", "ttl_seconds": 600}
    done = daemon.change(add=[rule], remove=["scan-0"])
    for id, why in done.refused.items():
        print(f"{id}: {why}", file=sys.stderr)

The keys of a rule are those of POST /v1/rules/changes in docs/reference/api.md. The module needs no library.
"""

import http.client
import json
import socket

BATCH = 1000
COMMENT_BYTES_MAX = 256
# A list of 10,000 rules is shorter.
ANSWER_BYTES_MAX = 16 << 20


class Unavailable(Exception):
    """steerd cannot be reached, or changes its policy: to be tried again."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Changed:
    """What changes have done: numbers of rules, and the ids of those that were refused with the reasons."""

    def __init__(self):
        self.added = 0
        self.unchanged = 0
        self.removed = 0
        self.refused = {}


class Daemon:
    """A steerd by the path of its API socket. Each call is a connection of its own."""

    def __init__(self, path):
        self.path = path

    def call(self, method, path, body=None):
        """The status and the object of the answer."""
        connection = UnixConnection(self.path)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            found = json.loads(answer.read(ANSWER_BYTES_MAX))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(f"{self.path}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 500 or answer.status == 408:
            raise Unavailable(f"{self.path}: {found['error']}")
        return answer.status, found

    def instance(self):
        """Differs after a restart of steerd, and after a change of its policy."""
        _, status = self.call("GET", "/v1/status")
        return status["pid"], status["policy"]["generation"]

    def rules(self):
        """The rules, at most the first 10,000 by id."""
        status, found = self.call("GET", "/v1/rules")
        if status != 200:
            raise Unavailable(f"{self.path}: {found['error']}")
        return found["rules"]

    def change(self, add=(), remove=()):
        """Removes and adds rules, in calls of at most BATCH of them. A rule that is refused keeps no other out."""
        changed = Changed()
        for key, entries in ("remove", list(remove)), ("add", list(add)):
            for at in range(0, len(entries), BATCH):
                self._change(key, entries[at : at + BATCH], changed)
        return changed

    def _change(self, key, entries, changed):
        """One call, and again without the entries that it refuses: all of a call is done, or nothing."""
        while entries:
            status, found = self.call("POST", "/v1/rules/changes", {key: entries})
            if status == 200:
                changed.added += found["added"]
                changed.unchanged += found["unchanged"]
                changed.removed += found["removed"]
                return
            refused = {rule[key]: rule["error"] for rule in found.get("refused", []) if key in rule}
            if not refused and status in (400, 413) and len(entries) > 1:
                # The body as a whole is not understood, because of one of its rules.
                half = len(entries) // 2
                self._change(key, entries[:half], changed)
                entries = entries[half:]
                continue
            if not refused:
                refused = dict.fromkeys(range(len(entries)), found["error"])
            changed.refused.update((id_of(entries[place]), why) for place, why in refused.items())
            entries = [entry for place, entry in enumerate(entries) if place not in refused]


def id_of(entry):
    """The id of a rule, which stands for the rule in the list of those to remove."""
    return entry["id"] if isinstance(entry, dict) else entry


def comment_of(text):
    """A text as steerd takes a comment: short, and without control characters."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.encode(errors="replace")[:COMMENT_BYTES_MAX].decode(errors="ignore")


def shown(text):
    """A text of others for a line of a log: short, and printable."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:200])
