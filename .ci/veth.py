"""A host and its peer: two network namespaces with a veth pair between them, for scripts that run programs in both."""

import os
import subprocess
import time

HOST, PEER = "192.0.2.1", "192.0.2.2"
PATIENCE_SECONDS = 30


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


class Network:
    """Two namespaces and the pair between them."""

    def __init__(self):
        name = f"steerd-{os.getpid()}"
        self.host, self.peer = f"{name}-host", f"{name}-peer"
        self.made, self.processes = [], []

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        for namespace in (self.host, self.peer):
            self.made.append(namespace)
            ip("netns", "add", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", self.host, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.peer)
        for namespace, address in ((self.host, HOST), (self.peer, PEER)):
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")

    def __exit__(self, *_):
        try:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        finally:
            for namespace in self.made:
                subprocess.run(["ip", "netns", "delete", namespace], check=False, stderr=subprocess.DEVNULL)

    def start(self, namespace, *command, **options):
        process = subprocess.Popen(["ip", "netns", "exec", namespace, *map(str, command)], text=True, **options)
        self.processes.append(process)
        return process

    def run(self, namespace, *command):
        process = self.start(namespace, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, _ = process.communicate()
        self.processes.remove(process)
        return process.returncode, text


def until(is_so, process=None):
    """Returns whether a condition becomes true in time, and before a process ends."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > end or (process and process.poll() is not None):
            return False
        time.sleep(0.05)
    return True
