"""Files encrypted at rest: AES-256-GCM in pieces, a key of its own for each file, nothing used that was not checked.

    file = MAGIC, 16 bytes of salt, then pieces of 1 MiB, each encrypted with 16 bytes behind it that prove it

    master key = scrypt(the secret, salt of the checkpoint)        32 bytes, 32 MB and some 0.1 s to find
    file key   = HKDF-SHA256(master key, salt of the file, "step/name")
    nonce      = number of the piece (11 bytes), 1 for the last piece and 0 for the others

So a piece that was changed, moved, left out or put in is refused, and so is a file that was cut, has another's name or
is of another step. The manifest has the salt and an identifier of the key (from the master key, by HKDF again), which
says before anything is decrypted whether the key is the right one. The manifest itself is plain: names, sizes, hashes of
the encrypted files, metrics.

Plain files exist while they are written or read, in a directory that only this user can look into: where TMPDIR says,
else in memory (/dev/shm) if there is room, else where temporary files go.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trimtab import secrets
from trimtab.errors import ConfigError, Finding, MissingExtraError, StorageError
from trimtab.secrets import Secret
from trimtab.store import manifests
from trimtab.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEY = "checkpoint.encrypt"
MAGIC = b"trimtab-encrypted-1\n"
SALT = 16
PIECE = 1 << 20
TAG = 16
CIPHER = "AES-256-GCM, 1 MiB pieces; scrypt 32768/8/1, HKDF-SHA256"
"""What a manifest says it is; costs are never taken from a file."""
KINDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What safetensors calls the types of torch."""
MIN_CHARACTERS = 16
"""A shorter secret can be guessed."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the file system in memory, looked into by nobody else: mkdtemp
PREFIX = "trimtab-plain-"


class Vault:
    """Encrypts and decrypts with one secret, which is read again at each use."""

    def __init__(self, secret: Secret, key: str = KEY) -> None:
        """
        Args:
            secret: where the key is.
            key: of the configuration, for errors.

        Raises:
            MissingExtraError: the library is not installed.
        """
        self.secret = secret
        self.key = key
        self._masters: dict[tuple[bytes, bytes], bytes] = {}
        self._salt = os.urandom(SALT)
        _primitives()

    def master(self, salt: bytes) -> bytes:
        """
        Raises:
            ConfigError: the secret cannot be read, or can be guessed.
        """
        value = self.secret.read(self.key)
        if len(value) < MIN_CHARACTERS:
            what = f"{self.secret}: has {len(value)} characters, expected {MIN_CHARACTERS} or more"
            raise ConfigError([Finding(place=self.key, what=what, hint="`openssl rand -hex 32` makes one")])
        known = hashlib.sha256(value.encode()).digest(), salt
        if known not in self._masters:
            self._masters[known] = _stretched(value, salt)
        return self._masters[known]

    def entry(self) -> dict[str, str]:
        """What a manifest says of how its files are encrypted now."""
        return {"cipher": CIPHER, "salt": self._salt.hex(), "key_id": key_id(self.master(self._salt))}

    def opens(self, entry: Mapping[str, Any]) -> bool:
        """Whether this is the key of files that were encrypted so.

        Raises:
            ConfigError: the secret cannot be read.
            StorageError: they were encrypted in a way that is not known here.
        """
        return key_id(self.master(_salt_of(entry))) == entry.get("key_id")


def _stretched(value: str, salt: bytes) -> bytes:
    """Of a secret that a person has chosen, a key that takes long to try."""
    return hashlib.scrypt(value.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)


def vault_of(secret: Secret | None) -> Vault | None:
    """Of a configuration's `checkpoint.encrypt`."""
    return None if secret is None else Vault(secret)


def vault_of_run(directory: RunDirectory) -> Vault | None:
    """Of the newest configuration of a run; None if it names no key."""
    named = directory.newest_config()["resolved"].get("checkpoint", {}).get("encrypt")
    if named is None:
        return None
    secrets.watch(found := Secret(named))
    return Vault(found)


def entry_of(place: Path) -> Mapping[str, Any] | None:
    """How the files of a checkpoint are encrypted; None if they are plain."""
    return (manifests.parsed(place / manifests.NAME) or {}).get("encryption")


def is_encrypted(place: Path) -> bool:
    """Whether the files of a checkpoint are."""
    return entry_of(place) is not None


def key_id(master: bytes) -> str:
    """Says which key it is, and nothing about it."""
    return _derived(master, b"", b"trimtab key id")[:8].hex()


def _salt_of(entry: Mapping[str, Any]) -> bytes:
    try:
        if entry["cipher"] == CIPHER and len(salt := bytes.fromhex(entry["salt"])) == SALT:
            return salt
    except (KeyError, TypeError, ValueError):
        pass
    raise StorageError(f"a manifest says that its files are encrypted by {str(entry)[:200]}, which is not known here")


# ------------------------------------------------------------------------------------------------------------ a file
def encrypt(plain: Iterable[Buffer], out: BinaryIO, master: bytes, name: str) -> None:
    """
    Args:
        plain: the file's bytes, in parts of any size.
        master: of `Vault.master`.
        name: `step/name`; the file can be decrypted under no other.
    """
    salt = os.urandom(SALT)
    cipher = _primitives()[0](_derived(master, salt, name.encode()))
    out.write(MAGIC + salt)
    room = memoryview(bytearray(PIECE + TAG))
    pieces = _pieces(plain)
    number, piece = 0, next(pieces, memoryview(b""))
    while True:
        after, size = next(pieces, None), len(piece) + TAG
        cipher.encrypt_into(_nonce(number, is_last=after is None), piece, None, room[:size])
        out.write(room[:size])
        if after is None:
            return
        number, piece = number + 1, after


def _pieces(parts: Iterable[Buffer]) -> Iterator[memoryview]:
    """The same bytes in pieces of `PIECE`, the last one shorter; what need not be copied is not."""
    held = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        if held:
            taken = min(PIECE - len(held), len(view))
            held += view[:taken]
            view = view[taken:]
            if len(held) < PIECE:
                continue
            yield memoryview(held)
            held = bytearray()
        whole = len(view) - len(view) % PIECE
        for start in range(0, whole, PIECE):
            yield view[start : start + PIECE]
        held += view[whole:]
    if held:
        yield memoryview(held)


def parts_of_file(path: Path) -> Iterator[bytes]:
    """A file's bytes."""
    with path.open("rb", buffering=0) as file:
        while data := file.read(PIECE):
            yield data


def parts_of_tensors(tensors: Mapping[str, Any]) -> Iterator[Buffer]:
    """The bytes of a safetensors file of tensors on the CPU, without a copy of them."""
    import torch

    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, place = {}, 0
    for name in order:
        tensor, start = tensors[name], place
        place += tensor.numel() * tensor.element_size()
        kind = KINDS[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, place]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in order:
        if tensors[name].numel():
            flat = tensors[name].detach().cpu().contiguous().flatten()
            yield flat.view(torch.uint8).numpy()


def decrypt(encrypted: BinaryIO, out: BinaryIO, master: bytes, name: str) -> None:
    """
    Raises:
        StorageError: the key is another, or a byte is not as it was written; what is in `out` by then is right.
    """
    fault = StorageError(f"{name} cannot be decrypted: it is not as it was written, or of another step or name")
    if encrypted.read(len(MAGIC)) != MAGIC or len(salt := encrypted.read(SALT)) != SALT:
        raise fault
    aes, invalid = _primitives()
    cipher = aes(_derived(master, salt, name.encode()))
    number, piece = 0, encrypted.read(PIECE + TAG)
    while True:
        after = encrypted.read(PIECE + TAG) if len(piece) == PIECE + TAG else b""
        try:
            out.write(cipher.decrypt(_nonce(number, is_last=not after), piece, None))
        except invalid:
            raise fault from None
        if not after:
            return
        number, piece = number + 1, after


def _nonce(number: int, *, is_last: bool) -> bytes:
    return b"\0\0\0" + struct.pack(">Q?", number, is_last)


def _derived(master: bytes, salt: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(master)


def _primitives() -> tuple[Any, type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtraError(f"{KEY} needs cryptography: pip install 'trimtab[encryption]'") from None
    return AESGCM, InvalidTag


# ------------------------------------------------------------------------------------------------------- a checkpoint
def encrypt_files(
    plain: Path, names: Iterable[str], to: Path, vault: Vault, entry: Mapping[str, Any], step: int
) -> None:
    """Files of a directory, encrypted under the same names in another one."""
    master = vault.master(_salt_of(entry))
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        with (to / name).open("wb") as out:
            encrypt(parts_of_file(plain / name), out, master, f"{step}/{name}")


@contextmanager
def opened(place: Path, vault: Vault | None, names: Collection[str] = ()) -> Iterator[Path]:
    """A checkpoint's files in plain, for as long as it lasts: its directory, or a private copy if they are encrypted.

    Args:
        place: the checkpoint's directory, whose files are as its manifest says.
        vault: of the key; None: there is none.
        names: only files whose names begin with one of these; none: all.

    Raises:
        ConfigError: there is no key, or it is another one; nothing was decrypted.
        StorageError: a file is not as it was written, or there is no room for the copy.
    """
    manifest = manifests.parsed(place / manifests.NAME) or {}
    entry = manifest.get("encryption")
    if entry is None:
        yield place
        return
    found = vault_for(place, entry, vault)
    wanted = [name for name in manifest["files"] if not names or name.startswith(tuple(names))]
    with private_folder(sum(manifest["files"][name]["bytes"] for name in wanted)) as folder:
        master = found.master(_salt_of(entry))
        for name in wanted:
            target = folder / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with (place / name).open("rb") as source, target.open("wb") as out:
                    decrypt(source, out, master, f"{manifest['step']}/{name}")
            except StorageError as error:
                raise StorageError(f"{place}: {error}") from None
            except OSError as error:
                raise StorageError(f"{place / name} cannot be decrypted into {folder}: {error.strerror}") from error
        yield folder


def vault_for(place: Path, entry: Mapping[str, Any], vault: Vault | None) -> Vault:
    """The key, which is the one of a checkpoint.

    Raises:
        ConfigError: there is none, or it is another one.
    """
    known = f"{place} is encrypted with the key of id {entry.get('key_id')}"
    if vault is None:
        hint = "set it to the run's key: ${env:NAME} or ${file:PATH}"
        raise ConfigError([Finding(place=KEY, what=f"null, but {known}", hint=hint)])
    if not vault.opens(entry):
        what = f"{vault.secret}: is another key (id {key_id(vault.master(_salt_of(entry)))}); {known}"
        hint = "name that key; to change it, `trimtab rekey RUN --to REFERENCE`, again if it was interrupted"
        raise ConfigError([Finding(place=vault.key, what=what, hint=hint)])
    return vault


# -------------------------------------------------------------------------------------------------------- plain files
@contextmanager
def private_folder(size: float) -> Iterator[Path]:
    """A directory for plain files that nobody else can look into, gone afterwards.

    Args:
        size: bytes that it is to hold.
    """
    base = _base(size)
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _base(size: float) -> Path:
    """In memory, if nobody has said otherwise and what is there by then leaves most of it free."""
    if os.environ.get("TMPDIR") is None and SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        import psutil

        free = min(shutil.disk_usage(SHARED_MEMORY).free, psutil.virtual_memory().available)
        if 4 * size < free:
            return SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _sweep(base: Path) -> None:
    """Take away what processes of this user have left that were killed."""
    for path in base.glob(f"{PREFIX}*"):
        number = path.name.removeprefix(PREFIX).partition("-")[0]
        try:
            is_left = number.isdigit() and not _lives(int(number)) and path.stat().st_uid == os.getuid()
        except OSError:
            continue
        if is_left:
            shutil.rmtree(path, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


Write = Callable[[Path], object]


def fill(
    scratch: Path,
    write: Write,
    more: Mapping[str, Iterable[Buffer]],
    vault: Vault,
    entry: Mapping[str, Any],
    step: int,
    size: float,
) -> None:
    """Let `write` fill a private directory, and put what is in it, encrypted, into `scratch`.

    Args:
        scratch: the directory.
        write: writes the plain files.
        more: files that are encrypted as they come out of memory, with their bytes.
        vault: of the key.
        entry: of the manifest.
        step: of the checkpoint.
        size: bytes that `write` will write, about.
    """
    with private_folder(size) as plain:
        try:
            write(plain)
        except OSError as error:
            where = f"plain files in {plain.parent}, which TMPDIR may name elsewhere"
            raise OSError(error.errno, f"{error.strerror or error} ({where})") from error
        names = sorted(path.relative_to(plain).as_posix() for path in plain.rglob("*") if path.is_file())
        encrypt_files(plain, names, scratch, vault, entry, step)
    master = vault.master(_salt_of(entry))
    for name, parts in more.items():
        with (scratch / name).open("wb") as out:
            encrypt(parts, out, master, f"{step}/{name}")
