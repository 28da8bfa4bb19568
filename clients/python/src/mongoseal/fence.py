"""Fenced collections: each write carries its writer's token, and the condition that no larger token has written before.

Mechanism: each verb is a generator that yields the commands. One loop carries them out for PyMongo's collections, another for its
asynchronous collections.

The field and the conditions are those of the Rust library, so that holders in both languages fence the same documents.

This module needs PyMongo 4.9 or later: `pip install "mongoseal[pymongo]"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import pymongo
from bson.int64 import Int64
from bson.regex import Regex
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.collection import Collection, ReturnDocument
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.results import DeleteResult, InsertOneResult, UpdateResult
from pymongo.write_concern import WriteConcern

from .errors import Fenced, Invalid

__all__ = ["AsyncFencedCollection", "FencedCollection", "Writer", "fenced"]

Filter = Mapping[str, Any]
Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]
R = TypeVar("R")
Commands = Generator[Callable[[], Any], Any, R]
"""Yields commands, is sent their results, and returns the result of the verb."""

_MAX_TOKEN = 2**53
_MAX_UPSERTS = 4
"""How often an upsert is sent that collides with another first write of its document."""
_FILTER_OPTIONS = ("collation", "hint", "let", "session")
"""The options that make a filter mean the same in a read as in the write."""


class Writer(Protocol):
    """A lease, of threads or of asyncio."""

    @property
    def token(self) -> int: ...

    def check(self) -> None: ...


@overload
def fenced(
    collection: Collection[Any], writer: Writer | int, *, field: str = "fence", timeout: float = 10
) -> FencedCollection: ...


@overload
def fenced(
    collection: AsyncCollection[Any], writer: Writer | int, *, field: str = "fence", timeout: float = 10
) -> AsyncFencedCollection: ...


def fenced(
    collection: Any, writer: Writer | int, *, field: str = "fence", timeout: float = 10
) -> FencedCollection | AsyncFencedCollection:
    """Returns the collection for writes of a holder: with its lease, or with the token that a worker was given.

    A write changes a document only if the document's token is no larger than the writer's, and leaves the writer's token
    there, in `field`. So once a holder has written a document, no earlier holder changes it. A document without the field
    admits any token. All writers of the collection must use the same field. A write takes at most `timeout` seconds.

    Each write raises, besides the errors of PyMongo:

    - `Fenced`: a later holder has written the document. Nothing was changed.
    - `LeaseLost`: the lease has ended. Nothing was sent.
    - `Invalid`: the write names the field of the token, an upsert does not name the `_id`, or the document has something
      else in the field. Nothing was changed.

    After an error of the network or a timeout, the write may have been made: read before you write again.
    """
    verbs = _Verbs(collection, writer, field, timeout)
    return AsyncFencedCollection(verbs) if isinstance(collection, AsyncCollection) else FencedCollection(verbs)


class FencedCollection:
    """A collection for writes with a token: see `fenced`. `options` are those of the method of PyMongo."""

    def __init__(self, verbs: _Verbs) -> None:
        self._verbs = verbs

    def claim(self, filter: Filter, **options: Any) -> Any:
        """Leaves the token in a document, and returns the document: from then on, each earlier holder is refused.

        A holder begins with it: acquire, claim, work. Nothing but the token changes. `None`: no document matches; with
        `upsert=True` one is inserted. The options are those of `find_one_and_update`.
        """
        return self._run(self._verbs.claim(filter, options))

    def claim_all(self, ids: Iterable[Any], **options: Any) -> list[Any]:
        """Claims the documents with these ids, one after the other, and returns them in the order of the ids.

        `None` stands for an id without a document. If one is refused, those before it stay claimed.
        """
        return [self.claim({"_id": {"$eq": id}}, **options) for id in ids]

    def insert_one(self, document: Mapping[str, Any], **options: Any) -> InsertOneResult:
        """Inserts a document with the token. Without an `_id` it gets one, which the result has."""
        result: InsertOneResult = self._run(self._verbs.insert_one(document, options))
        return result

    def update_one(self, filter: Filter, update: Update, **options: Any) -> UpdateResult:
        """Updates a document by operators or a pipeline. The filter of an upsert names the `_id`."""
        result: UpdateResult = self._run(self._verbs.update("update_one", filter, update, options))
        return result

    def replace_one(self, filter: Filter, replacement: Mapping[str, Any], **options: Any) -> UpdateResult:
        """Replaces a document. The token replaces what the replacement has in its field."""
        result: UpdateResult = self._run(self._verbs.replace("replace_one", filter, replacement, options))
        return result

    def delete_one(self, filter: Filter, **options: Any) -> DeleteResult:
        """Deletes a document. No token is left, so an earlier holder can insert the document again."""
        result: DeleteResult = self._run(self._verbs.delete_one(filter, options))
        return result

    def find_one_and_update(self, filter: Filter, update: Update, **options: Any) -> Any:
        """Updates a document, and returns it as PyMongo does."""
        return self._run(self._verbs.update("find_one_and_update", filter, update, options))

    def find_one_and_replace(self, filter: Filter, replacement: Mapping[str, Any], **options: Any) -> Any:
        """Replaces a document, and returns it as PyMongo does."""
        return self._run(self._verbs.replace("find_one_and_replace", filter, replacement, options))

    def _run(self, commands: Commands[R]) -> R:
        try:
            with pymongo.timeout(self._verbs.timeout):
                command = next(commands)
                while True:
                    try:
                        result = command()
                    except PyMongoError as error:
                        command = commands.throw(error)
                    else:
                        command = commands.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class AsyncFencedCollection:
    """A collection for writes with a token: see `fenced`. `options` are those of the method of PyMongo.

    If a call is cancelled, the write may still be made.
    """

    def __init__(self, verbs: _Verbs) -> None:
        self._verbs = verbs

    async def claim(self, filter: Filter, **options: Any) -> Any:
        """Leaves the token in a document, and returns the document: from then on, each earlier holder is refused.

        A holder begins with it: acquire, claim, work. Nothing but the token changes. `None`: no document matches; with
        `upsert=True` one is inserted. The options are those of `find_one_and_update`.
        """
        return await self._run(self._verbs.claim(filter, options))

    async def claim_all(self, ids: Iterable[Any], **options: Any) -> list[Any]:
        """Claims the documents with these ids, one after the other, and returns them in the order of the ids.

        `None` stands for an id without a document. If one is refused, those before it stay claimed.
        """
        return [await self.claim({"_id": {"$eq": id}}, **options) for id in ids]

    async def insert_one(self, document: Mapping[str, Any], **options: Any) -> InsertOneResult:
        """Inserts a document with the token. Without an `_id` it gets one, which the result has."""
        result: InsertOneResult = await self._run(self._verbs.insert_one(document, options))
        return result

    async def update_one(self, filter: Filter, update: Update, **options: Any) -> UpdateResult:
        """Updates a document by operators or a pipeline. The filter of an upsert names the `_id`."""
        result: UpdateResult = await self._run(self._verbs.update("update_one", filter, update, options))
        return result

    async def replace_one(self, filter: Filter, replacement: Mapping[str, Any], **options: Any) -> UpdateResult:
        """Replaces a document. The token replaces what the replacement has in its field."""
        result: UpdateResult = await self._run(self._verbs.replace("replace_one", filter, replacement, options))
        return result

    async def delete_one(self, filter: Filter, **options: Any) -> DeleteResult:
        """Deletes a document. No token is left, so an earlier holder can insert the document again."""
        result: DeleteResult = await self._run(self._verbs.delete_one(filter, options))
        return result

    async def find_one_and_update(self, filter: Filter, update: Update, **options: Any) -> Any:
        """Updates a document, and returns it as PyMongo does."""
        return await self._run(self._verbs.update("find_one_and_update", filter, update, options))

    async def find_one_and_replace(self, filter: Filter, replacement: Mapping[str, Any], **options: Any) -> Any:
        """Replaces a document, and returns it as PyMongo does."""
        return await self._run(self._verbs.replace("find_one_and_replace", filter, replacement, options))

    async def _run(self, commands: Commands[R]) -> R:
        try:
            with pymongo.timeout(self._verbs.timeout):
                command = next(commands)
                while True:
                    try:
                        result = await command()
                    except PyMongoError as error:
                        command = commands.throw(error)
                    else:
                        command = commands.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class _Verbs:
    """The writes as commands, for collections of both kinds."""

    def __init__(self, collection: Any, writer: Writer | int, field: str, timeout: float) -> None:
        token = writer if isinstance(writer, int) else writer.token
        if isinstance(token, bool) or not 1 <= token < _MAX_TOKEN:
            raise Invalid(f"{token} is no fencing token: pass a number from 1 to 2**53 - 1")
        if not field or field == "_id" or any(character in field for character in "$.\0"):
            raise Invalid(f"{field!r} cannot name the field of the token: pass a name without `$` and `.`")
        # A rollback of the write would let an earlier holder in again.
        self._writes = collection.with_options(write_concern=WriteConcern("majority", j=True))
        self._reads = collection.with_options(read_concern=ReadConcern("local"), read_preference=ReadPreference.PRIMARY)
        self._writer = writer
        self._token = Int64(token)
        self._field = field
        self.timeout = timeout

    def insert_one(self, document: Mapping[str, Any], options: dict[str, Any]) -> Commands[Any]:
        self._check()
        inserted = self._stamped(document)
        try:
            return (yield lambda: self._writes.insert_one(inserted, **options))
        except DuplicateKeyError:
            yield from self._refuse_if_blocked({"_id": {"$eq": inserted["_id"]}}, {"session": options.get("session")})
            raise

    def claim(self, filter: Filter, options: dict[str, Any]) -> Commands[Any]:
        after = {**options, "return_document": ReturnDocument.AFTER}
        return (yield from self.update("find_one_and_update", filter, {}, after))

    def update(self, verb: str, filter: Filter, update: Update, options: dict[str, Any]) -> Commands[Any]:
        self._check()
        changed: Any
        if isinstance(update, Mapping):
            changed = self._stamped_operators(update)
        else:
            changed = self._stamped_pipeline(update)
        return (yield from self._write(verb, filter, (changed,), options))

    def replace(
        self, verb: str, filter: Filter, replacement: Mapping[str, Any], options: dict[str, Any]
    ) -> Commands[Any]:
        self._check()
        return (yield from self._write(verb, filter, (self._stamped(replacement),), options))

    def delete_one(self, filter: Filter, options: dict[str, Any]) -> Commands[Any]:
        self._check()
        return (yield from self._write("delete_one", filter, (), options))

    def _write(self, verb: str, filter: Filter, content: tuple[Any, ...], options: dict[str, Any]) -> Commands[Any]:
        passing = {"$and": [dict(filter), self._passes()]}

        def send() -> Any:
            return getattr(self._writes, verb)(passing, *content, **options)

        if options.get("upsert"):
            return (yield from self._upsert(_pinned_id(filter), send, options))
        done = yield send
        if not _has_found(done):
            yield from self._refuse_if_blocked({"$and": [dict(filter), {"$nor": [self._passes()]}]}, options)
        return done

    def _upsert(self, id: Any, send: Callable[[], Any], options: dict[str, Any]) -> Commands[Any]:
        """Sends a write that inserts the document if its filter matches none.

        If the fence hides the document, or another writer inserts it first, the insert fails on the `_id`.
        """
        for attempt in range(1, _MAX_UPSERTS + 1):
            try:
                return (yield send)
            except DuplicateKeyError:
                yield from self._refuse_if_blocked({"_id": {"$eq": id}}, {"session": options.get("session")})
                # The document admits this token. Either it was inserted at this moment, or the caller's filter does not
                # match it.
                if attempt == _MAX_UPSERTS:
                    raise

    def _refuse_if_blocked(self, filter: Filter, options: dict[str, Any]) -> Commands[None]:
        """Raises `Fenced` if a later holder has written a document of the filter."""
        same = {name: options[name] for name in _FILTER_OPTIONS if options.get(name) is not None}
        found = yield lambda: self._reads.find_one(filter, {"_id": 0, self._field: 1}, **same)
        token = (found or {}).get(self._field)
        if token is None or (_is_long(token) and token <= self._token):
            return
        if _is_long(token) and token < _MAX_TOKEN:
            raise Fenced(int(token))
        raise Invalid(
            f"the field `{self._field}` of the document has {token!r} and no fencing token, so it was left as it is: "
            "unset it, or choose another field for tokens"
        )

    def _check(self) -> None:
        if not isinstance(self._writer, int):
            self._writer.check()

    def _passes(self) -> dict[str, Any]:
        """Matches documents that admit the token. `$lte` and `$type` look at each element of an array."""
        return {
            "$and": [
                {self._field: {"$not": {"$type": "array"}}},
                {"$or": [{self._field: {"$lte": self._token, "$type": "long"}}, {self._field: None}]},
            ]
        }

    def _stamped(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The whole document, with this token in place of an older one. A document to insert gets its `_id` first."""
        if any(name.startswith("$") for name in document):
            raise Invalid("a document to insert or replace has fields and no operators: use an update for operators")
        return {**document, self._field: self._token}

    def _stamped_operators(self, update: Mapping[str, Any]) -> dict[str, Any]:
        for operator, fields in update.items():
            if not operator.startswith("$"):
                raise Invalid(f"{operator!r} is no update operator: use `$set`, or replace the whole document")
            for name, value in fields.items() if isinstance(fields, Mapping) else ():
                if self._touches(name) or (operator == "$rename" and self._touches(value)):
                    raise self._is_taken()
        fields = update.get("$set", {})
        if not isinstance(fields, Mapping):
            raise Invalid("`$set` takes a document of fields: pass one")
        return {**update, "$set": {**fields, self._field: self._token}}

    def _stamped_pipeline(self, stages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        for stage in stages:
            for operator, what in stage.items():
                if operator in ("$set", "$addFields", "$project", "$unset"):
                    names = [what] if isinstance(what, str) else what
                    if any(self._touches(name) for name in names):
                        raise self._is_taken()
        # Last, so that no earlier stage removes it.
        return [*stages, {"$set": {self._field: self._token}}]

    def _touches(self, path: Any) -> bool:
        return isinstance(path, str) and path.split(".")[0] == self._field

    def _is_taken(self) -> Invalid:
        return Invalid(
            f"the update writes `{self._field}`, where the token goes: leave that field out, or choose another for tokens"
        )


def _has_found(done: UpdateResult | DeleteResult | Mapping[str, Any] | None) -> bool:
    """Whether a result is that of a document which was found."""
    if isinstance(done, UpdateResult):
        return done.matched_count > 0
    return done.deleted_count > 0 if isinstance(done, DeleteResult) else done is not None


def _is_long(value: Any) -> bool:
    """Whether the server has the value as a long. PyMongo returns it as `Int64`."""
    return isinstance(value, Int64)


def _pinned_id(filter: Filter) -> Any:
    """The `_id` that a filter names by equality. With any other filter, a refused upsert could insert a second document."""
    id = filter.get("_id")
    if isinstance(id, Mapping) and any(name.startswith("$") for name in id):
        id = id.get("$eq") if len(id) == 1 else None
    if id is None or isinstance(id, (re.Pattern, Regex)):
        raise Invalid(
            "a fenced upsert needs a filter that names the `_id` by equality: add it, or insert first and then update"
        )
    return id
