"""Large partitions as files, so that a restart need not read and cluster a million vectors again.

A snapshot is an index, the entries' ids and digests, and a manifest with a SHA-256 of each, written beside, made
durable, then renamed: the manifest's name is the only one that is looked for. Whatever does not fit to the letter is
set aside and counts as none. Everything here blocks: call it in a thread.
Does not know stores: what it gives back may be out of date, and its reader brings it up to date. Of a text only the
vector is written, and a digest of the scope.
"""

import fcntl
import hashlib
import logging
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from cache.index import Index
from cache.index import load as load_index
from cache.partition import Kind
from cache.table import Table

log = logging.getLogger("nearhit.cache")

_VERSION = 1
_DIGEST = 32
_BLOCK = 1 << 20
_ROWS_AT_ONCE = 20_000
_ASIDE = ".unreadable"
_ROW = np.dtype([("id", "<i8"), ("exact", f"V{_DIGEST}")])

Key = tuple[bytes, str]


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a snapshot says of itself. `position`: the place in the store's change stream it is complete up to."""

    version: int
    scope: str
    encoder: str
    dimension: int
    kind: Kind
    count: int
    position: str
    index: str
    index_sha256: str
    rows: str
    rows_sha256: str


class Saved(Struct, frozen=True):
    """A snapshot read back. `dead`: rows of the index whose entry had gone when it was written."""

    kind: Kind
    index: Index
    exact_of: Table
    dead: Table
    position: str


class Snapshots:
    """One folder of this installation's own. At most `max_bytes` in it: the oldest go first."""

    def __init__(self, folder: Path, *, max_bytes: int = 8 << 30) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def has(self, key: Key) -> bool:
        return self._manifest(key).exists()

    def save(self, key: Key, saved: Saved) -> bool:
        """Write `saved.index` and the digests of its rows; False where another process is writing one now.

        `exact_of` may be changed meanwhile by its owner: rows that are gone from it are written as dead.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._writing() as mine:
            if not mine:
                return False
            stem = f"{_name(key)}.{secrets.token_hex(4)}"
            index, rows = self._folder / f"{stem}.index", self._folder / f"{stem}.rows"
            try:
                self._write(key, saved, index, rows)
            except BaseException:
                for path in (index, rows):
                    path.unlink(missing_ok=True)
                raise
            self._tidy(key)
        return True

    def load(self, key: Key, dimension: int) -> Saved | None:
        """The last one saved for `key`; None where there is none that can be trusted."""
        path = self._manifest(key)
        try:
            manifest = _read_manifest(path)
            self._check(manifest, key, dimension)
            return self._read(manifest)
        except FileNotFoundError:
            return None  # none, or replaced by another process just now
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning("cache snapshot %s set aside: %s", path.name, error)
            with suppress(OSError):
                path.replace(path.with_name(path.name + _ASIDE))
            return None

    def forget(self, key: Key) -> None:
        """Take it away; its files go with the next one that is written."""
        with suppress(OSError):
            self._manifest(key).unlink(missing_ok=True)

    def _manifest(self, key: Key) -> Path:
        return self._folder / f"{_name(key)}.json"

    def _write(self, key: Key, saved: Saved, index: Path, rows: Path) -> None:
        index.touch(mode=0o600)
        saved.index.save(index)
        _make_durable(index)
        rows.touch(mode=0o600)
        with rows.open("wb") as file:
            for ids, _ in saved.index.blocks():
                file.write(_packed(ids.tolist(), saved.exact_of))
            file.flush()
            os.fsync(file.fileno())
        manifest = Manifest(
            version=_VERSION,
            scope=_scope(key),
            encoder=key[1],
            dimension=saved.index.dimension,
            kind=saved.kind,
            count=len(saved.index),
            position=saved.position,
            index=index.name,
            index_sha256=_sha256(index),
            rows=rows.name,
            rows_sha256=_sha256(rows),
        )
        body = msgspec.json.encode(manifest)
        temporary = self._manifest(key).with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        _make_durable(temporary)
        temporary.replace(self._manifest(key))
        _make_durable(self._folder)

    def _check(self, manifest: Manifest, key: Key, dimension: int) -> None:
        """Raises ValueError for a snapshot of something else."""
        wanted = (_VERSION, _scope(key), key[1], dimension)
        if (manifest.version, manifest.scope, manifest.encoder, manifest.dimension) != wanted:
            raise ValueError("it is of another version, scope, encoder or dimension")
        if Path(manifest.index).name != manifest.index or Path(manifest.rows).name != manifest.rows:
            raise ValueError("it points outside its folder")

    def _read(self, manifest: Manifest) -> Saved:
        index_path, rows_path = self._folder / manifest.index, self._folder / manifest.rows
        for path, digest in ((index_path, manifest.index_sha256), (rows_path, manifest.rows_sha256)):
            if _sha256(path) != digest:
                raise ValueError(f"{path.name} is damaged")
        index: Index = load_index(manifest.kind).restore(index_path, manifest.dimension)
        raw = rows_path.read_bytes()
        if len(index) != manifest.count or len(raw) != manifest.count * _ROW.itemsize:
            raise ValueError("it has another number of rows than it says")
        exact_of, dead = Table(), Table()
        for start in range(0, len(raw), _ROWS_AT_ONCE * _ROW.itemsize):
            rows = np.frombuffer(raw[start : start + _ROWS_AT_ONCE * _ROW.itemsize], dtype=_ROW)
            for entry_id, exact in zip(rows["id"].tolist(), rows["exact"].tolist(), strict=True):
                (dead if exact == _NOTHING else exact_of).put(entry_id, exact)
        for entry_id in [entry_id for entry_id in dead if entry_id in exact_of]:
            dead.pop(entry_id)
        return Saved(manifest.kind, index, exact_of, dead, manifest.position)

    @contextmanager
    def _writing(self) -> Generator[bool]:
        """One process at a time; whether it is this one. Freed by the system when the process dies."""
        with (self._folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True

    def _tidy(self, keep: Key) -> None:
        """Files no manifest names are left-overs; above the bound the oldest snapshots go too."""
        named: dict[str, Path] = {}
        sizes: list[tuple[float, Path, int]] = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError, ValueError, msgspec.MsgspecError):
                manifest = _read_manifest(path)
                files = [self._folder / manifest.index, self._folder / manifest.rows]
                sizes.append((path.stat().st_mtime, path, sum(file.stat().st_size for file in files)))
                named.update((file.name, path) for file in files)
        total = sum(size for *_, size in sizes)
        gone: set[Path] = set()
        for _, path, size in sorted(sizes):
            if total > self._max_bytes and path != self._manifest(keep):
                path.unlink(missing_ok=True)
                gone.add(path)
                total -= size
        for path in self._folder.iterdir():
            left = path.suffix in {".index", ".rows"} and (path.name not in named or named[path.name] in gone)
            if left or path.suffix in {_ASIDE, ".new"}:
                path.unlink(missing_ok=True)


_NOTHING = bytes(_DIGEST)


def _name(key: Key) -> str:
    """Another encoder, another name: what an older one made is never found again."""
    return hashlib.sha256(len(key[0]).to_bytes(8, "big") + key[0] + key[1].encode()).hexdigest()[:32]


def _scope(key: Key) -> str:
    return hashlib.sha256(key[0]).hexdigest()


def _packed(ids: list[int], exact_of: Table) -> bytes:
    """Rows as they are written. A digest of another length cannot be: such an entry counts as dead and is read anew."""
    rows = np.zeros(len(ids), _ROW)
    rows["id"] = ids
    exacts = (exact_of.get(entry_id) or b"" for entry_id in ids)
    joined = b"".join(exact if len(exact) == _DIGEST else _NOTHING for exact in exacts)
    rows["exact"] = np.frombuffer(joined, dtype=f"V{_DIGEST}")
    return rows.tobytes()


def _read_manifest(path: Path) -> Manifest:
    digest, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("its manifest is damaged")
    return msgspec.json.decode(body, type=Manifest)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _make_durable(path: Path) -> None:
    """What was written survives a power cut from here on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
