"""Two hosts on one machine: namespaces of their own with an sshd each, joined by a cable.

All of it is gone as soon as its processes are, and they die with the process that starts them, so
that a crash leaves nothing behind. Neither host reaches anything but the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
SPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")

# The first process of a host. Only the host sees what it mounts.
BOOT = """
set -e
hostname "$1"
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/ssh_config" /etc/ssh/ssh_config
exec "$3" -D -e -f "$2/sshd_config" -o PidFile="$2/$1.ready"
"""

SSHD_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""

SSH_CONFIG = """
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
"""


def why_not() -> str | None:
    """What keeps this machine from having two hosts."""
    if os.geteuid() != 0:
        return "two hosts need root, for namespaces"
    for program in ("unshare", "nsenter", "setpriv", "ip", "tc", "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"two hosts need the program {program}"
    if SSHD is None:
        return "two hosts need sshd; scripts/test.sh --hosts installs it"
    if not Path("/etc/ssh/ssh_config").exists():
        return "two hosts need /etc/ssh/ssh_config, over which they mount their own"
    inside = "ip link add x type veth peer name y && mount -t tmpfs tmpfs /run"
    command = ["unshare", *SPACES, "--fork", "--mount-proc", "sh", "-c", inside]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def write_settings(folder: Path) -> None:
    for key in ("host_key", "user_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    public = (folder / "host_key.pub").read_text()
    names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
    (folder / "known_hosts").write_text("".join(f"{name} {public}" for name in ADDRESSES))
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
    (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))


def children(starter: subprocess.Popen) -> list[int]:
    path = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
    return [int(number) for number in path.read_text().split()] if starter.poll() is None else []


def first_process(name: str, starter: subprocess.Popen, folder: Path) -> int:
    """Wait for the sshd of a host; return its number."""
    deadline = time.monotonic() + 30
    while not (folder / f"{name}.ready").exists():
        if starter.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((folder / f"{name}.log").read_text())
        time.sleep(0.02)
    return children(starter)[0]


def end(starter: subprocess.Popen) -> None:
    """End a host: with its first process, all of its processes end."""
    for number in children(starter) or [starter.pid]:
        if starter.poll() is None:
            os.kill(number, signal.SIGKILL)
    starter.wait(timeout=30)


@contextmanager
def two_hosts(folder: Path) -> Iterator[list[str]]:
    """Start hosts a and b; yields what to put in front of a command for host a."""
    write_settings(folder)
    starters = []
    try:
        for name in ADDRESSES:
            command = ["setpriv", "--pdeathsig", "KILL", "unshare", *SPACES, "--fork"]
            command += ["--kill-child", "--mount-proc", "sh", "-c", BOOT, "boot", name]
            with (folder / f"{name}.log").open("w") as log:
                starters.append(
                    subprocess.Popen([*command, str(folder), str(SSHD)], stdout=log, stderr=log)
                )
        numbers = [
            str(first_process(name, starter, folder)) for name, starter in zip(ADDRESSES, starters)
        ]
        a, b = numbers
        run(*f"ip link add eth0 netns {a} type veth peer name eth0 netns {b}".split())
        for number, address in zip(numbers, ADDRESSES.values()):
            inside = ["nsenter", "--target", number, "--net", "ip"]
            run(*inside, "address", "add", f"{address}/30", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
        yield ["nsenter", "--target", a, *SPACES, f"--wd={Path.cwd()}"]
    finally:
        for starter in starters:
            end(starter)
