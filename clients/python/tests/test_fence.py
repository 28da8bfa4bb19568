"""Fenced collections, on a replica set."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pymongo
import pytest
from bson.int64 import Int64
from conftest import Server
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from mongoseal import Fenced, Invalid, LeaseLost
from mongoseal.fence import fenced
from mongoseal.testing import FakeMongoseal

Document = dict[str, Any]

OLD, PRESENT, NEWER = 2**40, 2**40 + 1, 2**40 + 2


@pytest.fixture
def orders(server: Server) -> Iterator[Collection[Document]]:
    with pymongo.MongoClient[Document](server.uri) as client:
        orders = client[server.db][f"orders_{server.collection}"]
        yield orders
        orders.drop()


def test_a_later_holder_fences_each_write_of_an_earlier_one(orders: Collection[Document]) -> None:
    earlier, later = fenced(orders, OLD), fenced(orders, NEWER)
    assert earlier.insert_one({"_id": 1, "n": 0}).inserted_id == 1
    assert later.update_one({"_id": 1}, {"$inc": {"n": 1}}).modified_count == 1
    written = {"_id": 1, "n": 1, "fence": NEWER}
    refused: list[Callable[[], object]] = [
        lambda: earlier.insert_one({"_id": 1}),
        lambda: earlier.update_one({"_id": 1}, {"$inc": {"n": 1}}),
        lambda: earlier.update_one({"_id": 1}, [{"$set": {"n": 9}}]),
        lambda: earlier.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True),
        lambda: earlier.update_one({"n": 1}, {"$inc": {"n": 1}}),
        lambda: earlier.replace_one({"_id": 1}, {"n": 9}),
        lambda: earlier.replace_one({"_id": 1}, {"n": 9}, upsert=True),
        lambda: earlier.delete_one({"_id": 1}),
        lambda: earlier.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}),
        lambda: earlier.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}, upsert=True),
        lambda: earlier.find_one_and_replace({"_id": 1}, {"n": 9}),
    ]
    for write in refused:
        with pytest.raises(Fenced) as raised:
            write()
        assert raised.value.newer == NEWER
        assert orders.find_one() == written
    assert orders.count_documents({}) == 1


def test_a_claim_refuses_each_earlier_holder_before_the_later_one_writes(orders: Collection[Document]) -> None:
    earlier, later = fenced(orders, OLD), fenced(orders, NEWER)
    orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2}])
    assert earlier.claim({"_id": 1}) == {"_id": 1, "n": 1, "fence": OLD}
    for _time in range(2):
        assert later.claim_all([2, 3, 1]) == [{"_id": 2, "fence": NEWER}, None, {"_id": 1, "n": 1, "fence": NEWER}]
    for late in (
        lambda: earlier.claim({"_id": 1}),
        lambda: earlier.claim_all([3, 2]),
        lambda: earlier.update_one({"_id": 2}, {"$set": {"n": 9}}),
    ):
        with pytest.raises(Fenced):
            late()
    assert later.claim({"_id": 3}, upsert=True) == {"_id": 3, "fence": NEWER}


def test_each_write_leaves_the_token_as_a_long(orders: Collection[Document]) -> None:
    writer = fenced(orders, 7)
    writer.insert_one({"_id": "insert"})
    writer.update_one({"_id": "upsert"}, {"$set": {"n": 1}}, upsert=True)
    writer.update_one({"_id": "pipeline"}, [{"$set": {"n": 1}}], upsert=True)
    writer.replace_one({"_id": "replace"}, {"fence": 3, "n": 1}, upsert=True)
    writer.find_one_and_update({"_id": "find and update"}, {"$set": {"n": 1}}, upsert=True)
    writer.find_one_and_replace({"_id": "find and replace"}, {"n": 1}, upsert=True)
    assert orders.count_documents({"fence": {"$eq": 7, "$type": "long"}}) == 6
    for document in list(orders.find()):
        assert writer.update_one({"_id": document["_id"]}, {"$set": {"again": True}}).matched_count == 1
        assert fenced(orders, 8).delete_one({"_id": document["_id"]}).deleted_count == 1


def test_results_and_options_are_those_of_pymongo(orders: Collection[Document]) -> None:
    writer = fenced(orders, PRESENT)
    assert writer.update_one({"_id": 1}, {"$set": {"n": 1}}).matched_count == 0
    assert writer.delete_one({"_id": 1}).deleted_count == 0
    assert writer.find_one_and_update({"_id": 1}, {"$set": {"n": 1}}) is None
    generated = writer.insert_one({"lines": [{"n": 1}, {"n": 2}]}).inserted_id
    after = writer.find_one_and_update(
        {"_id": generated},
        {"$set": {"lines.$[line].n": 3}},
        array_filters=[{"line.n": 2}],
        return_document=pymongo.ReturnDocument.AFTER,
        projection={"_id": 0, "fence": 0},
    )
    assert after == {"lines": [{"n": 1}, {"n": 3}]}
    orders.insert_one({"_id": "ä", "name": "Émile", "fence": Int64(NEWER)})
    with pytest.raises(Fenced):
        writer.update_one({"name": "emile"}, {"$set": {"n": 1}}, collation={"locale": "fr", "strength": 1})
    with pytest.raises(Fenced):
        writer.update_one({"$expr": {"$eq": ["$name", "$$who"]}}, {"$set": {"n": 1}}, let={"who": "Émile"})


def test_the_error_of_pymongo_is_raised_if_the_fence_is_not_the_reason(orders: Collection[Document]) -> None:
    writer = fenced(orders, PRESENT)
    writer.insert_one({"_id": 1, "n": 1})
    with pytest.raises(DuplicateKeyError):
        writer.insert_one({"_id": 1})
    with pytest.raises(DuplicateKeyError):
        writer.update_one({"_id": 1, "n": 2}, {"$set": {"n": 3}}, upsert=True)
    assert orders.find_one() == {"_id": 1, "n": 1, "fence": PRESENT}


@pytest.mark.parametrize("value", [None, Int64(OLD), Int64(-1), Int64(PRESENT)], ids=str)
def test_a_document_that_admits_the_token_is_written(orders: Collection[Document], value: object) -> None:
    orders.insert_one({"_id": 1, "fence": value})
    assert fenced(orders, PRESENT).update_one({"_id": 1}, {"$set": {"n": 1}}).matched_count == 1


@pytest.mark.parametrize("value", [7, 7.0, "7", [Int64(7)], {"a": 1}, Int64(2**60)], ids=str)
def test_something_else_in_the_field_is_refused_and_kept(orders: Collection[Document], value: object) -> None:
    orders.insert_one({"_id": 1, "fence": value})
    for upsert in (False, True):
        with pytest.raises(Invalid, match="unset it"):
            fenced(orders, PRESENT).update_one({"_id": 1}, {"$set": {"n": 1}}, upsert=upsert)
    assert orders.find_one() == {"_id": 1, "fence": value}


@pytest.mark.parametrize(
    "update",
    [
        {"$set": {"fence": 1}},
        {"$inc": {"n": 1, "fence": 1}},
        {"$unset": {"fence": ""}},
        {"$setOnInsert": {"fence.deeper": 1}},
        {"$rename": {"other": "fence"}},
        {"$rename": {"fence": "other"}},
        {"n": 1},
        {"$set": 1},
        [{"$set": {"fence": 1}}],
        [{"$addFields": {"fence.a": 1}}],
        [{"$unset": "fence"}],
        [{"$unset": ["a", "fence"]}],
        [{"$project": {"fence": 0}}],
    ],
    ids=str,
)
def test_an_update_of_the_field_of_the_token_is_refused(orders: Collection[Document], update: Any) -> None:
    orders.insert_one({"_id": 1})
    with pytest.raises(Invalid):
        fenced(orders, PRESENT).update_one({"_id": 1}, update)
    assert orders.find_one() == {"_id": 1}


def test_a_pipeline_cannot_remove_the_token(orders: Collection[Document]) -> None:
    fenced(orders, PRESENT).update_one({"_id": 1}, [{"$replaceWith": {"_id": 1, "a": 1}}], upsert=True)
    assert orders.find_one() == {"_id": 1, "a": 1, "fence": PRESENT}


@pytest.mark.parametrize(
    "filter",
    [{}, {"n": 1}, {"_id": {"$in": [1]}}, {"_id": {"$eq": 1, "$gt": 0}}, {"_id": re.compile("a")}, {"$or": [{"_id": 1}]}],
    ids=str,
)
def test_an_upsert_names_its_id(orders: Collection[Document], filter: Document) -> None:
    with pytest.raises(Invalid, match="_id"):
        fenced(orders, PRESENT).update_one(filter, {"$set": {"n": 1}}, upsert=True)


def test_names_tokens_and_documents_that_cannot_be_are_refused(orders: Collection[Document]) -> None:
    for field in ("", "_id", "$fence", "a.b", "a\0b"):
        with pytest.raises(Invalid):
            fenced(orders, PRESENT, field=field)
    for token in (0, -1, 2**53, True):
        with pytest.raises(Invalid):
            fenced(orders, token)
    with pytest.raises(Invalid):
        fenced(orders, PRESENT).insert_one({"$set": {}})
    with pytest.raises(Invalid):
        fenced(orders, PRESENT).replace_one({"_id": 1}, {"$set": {}})


def test_an_unusual_field_is_fenced_as_well(orders: Collection[Document]) -> None:
    fenced(orders, NEWER, field="written by").insert_one({"_id": 1, "fence": "free"})
    with pytest.raises(Fenced):
        fenced(orders, OLD, field="written by").delete_one({"_id": 1})


def test_a_lease_that_has_ended_writes_nothing(orders: Collection[Document]) -> None:
    fake = FakeMongoseal()
    with fake.client() as seal:
        lease = seal.acquire("k")
        writer = fenced(orders, lease)
        writer.insert_one({"_id": 1})
        fake.lose("k")
        lease.wait_lost()
        writes: list[Callable[[], object]] = [
            lambda: writer.insert_one({"_id": 2}),
            lambda: writer.update_one({"_id": 1}, {"$set": {"n": 1}}),
            lambda: writer.replace_one({"_id": 1}, {"n": 1}),
            lambda: writer.delete_one({"_id": 1}),
        ]
        for write in writes:
            with pytest.raises(LeaseLost):
                write()
    assert list(orders.find()) == [{"_id": 1, "fence": lease.token}]


def test_a_write_in_a_transaction_is_fenced(server: Server, orders: Collection[Document]) -> None:
    orders.insert_one({"_id": 1, "fence": Int64(OLD)})
    client = orders.database.client
    with client.start_session() as session:
        with pytest.raises(ZeroDivisionError), session.start_transaction():
            fenced(orders, PRESENT).update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
            raise ZeroDivisionError
        assert orders.find_one() == {"_id": 1, "fence": OLD}
        with session.start_transaction():
            fenced(orders, PRESENT).update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
    assert orders.find_one() == {"_id": 1, "n": 1, "fence": PRESENT}


def test_an_asynchronous_collection_is_fenced_in_the_same_way(server: Server, orders: Collection[Document]) -> None:
    async def main() -> None:
        async with pymongo.AsyncMongoClient[Document](server.uri) as client:
            collection = client[server.db][orders.name]
            fake = FakeMongoseal()
            async with fake.aio_client() as seal, seal.acquire("k") as lease:
                writer = fenced(collection, lease)
                assert (await writer.insert_one({"_id": 1, "n": 0})).inserted_id == 1
                assert (await writer.update_one({"_id": 1}, {"$inc": {"n": 1}})).matched_count == 1
                assert (await writer.replace_one({"_id": 1}, {"n": 5})).matched_count == 1
                assert await writer.claim_all([9, 1]) == [None, {"_id": 1, "n": 5, "fence": lease.token}]
                before = await writer.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}})
                assert before == {"_id": 1, "n": 5, "fence": lease.token}
                assert await writer.find_one_and_replace({"_id": 2}, {"n": 5}, upsert=True) is None
                await fenced(collection, NEWER).update_one({"_id": 1}, {"$inc": {"n": 1}})
                writes: list[Awaitable[object]] = [
                    writer.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True),
                    writer.insert_one({"_id": 1}),
                    writer.delete_one({"_id": 1}),
                ]
                for write in writes:
                    with pytest.raises(Fenced) as raised:
                        await write
                    assert raised.value.newer == NEWER
                assert (await writer.delete_one({"_id": 2})).deleted_count == 1

    asyncio.run(main())
    assert list(orders.find()) == [{"_id": 1, "n": 7, "fence": NEWER}]


def test_collisions_of_first_writes_end_with_one_document(orders: Collection[Document]) -> None:
    def write(token: int) -> None:
        for number in range(20):
            try:
                fenced(orders, token).update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)
            except Fenced:
                pass

    threads = [threading.Thread(target=write, args=(PRESENT + number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert orders.count_documents({}) == 20
    assert {document["fence"] for document in orders.find()} == {PRESENT + 3}


def test_the_program_reads_the_tokens_of_this_package_and_the_reverse(
    server: Server, orders: Collection[Document]
) -> None:
    with server.client() as seal, seal.acquire("k") as lease:
        fenced(orders, lease).insert_one({"_id": 1})
        seen = json.loads(server.run("fences", orders.name, "--json"))
        assert str(lease.token) in json.dumps(seen)
    # A later lease of the program.
    held = server.run("run", "k", "--no-wait", "--", "sh", "-c", "echo $MONGOSEAL_TOKEN")
    assert fenced(orders, int(held)).update_one({"_id": 1}, {"$set": {"n": 1}}).matched_count == 1
    with pytest.raises(Fenced):
        fenced(orders, lease.token).update_one({"_id": 1}, {"$set": {"n": 2}})
