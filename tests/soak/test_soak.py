"""The soak's plan is drawn from its seed alone, and a small soak ends as a long one must."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import LocalCluster
from tests.scenarios.worker import Moment
from tests.soak.engine import SoakError, a_soak
from tests.soak.plan import Publication, Trouble, publication


def test_a_publication_is_the_same_whenever_it_is_drawn() -> None:
    drawn = [publication(7, number, targets=5, nodes=2) for number in range(200)]
    assert drawn == [publication(7, number, targets=5, nodes=2) for number in range(200)]
    assert drawn != [publication(8, number, targets=5, nodes=2) for number in range(200)]


def test_five_hundred_publications_meet_every_trouble() -> None:
    drawn = [publication(1, number, targets=5, nodes=2) for number in range(500)]
    assert {one.trouble for one in drawn} == set(Trouble)
    assert {one.target for one in drawn} == set(range(5))
    assert all(one.trouble is Trouble.NONE for one in drawn[:5])
    assert all((one.moment is not None) == one.trouble.value.endswith("worker killed") for one in drawn)


@pytest.mark.cluster
def test_a_small_soak_ends_with_what_was_committed_last_and_sees_what_is_wrong(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    troubles = (
        *(Trouble.NONE, Trouble.FAILS, Trouble.REFUSED_SWAP),
        *(Trouble.KILLED_PUBLISH, Trouble.NONE),
    )
    with a_soak(cluster, 1, tmp_path) as soak:
        for number, trouble in enumerate(troubles):
            moment = Moment.CLAIMED if trouble is Trouble.KILLED_PUBLISH else None
            soak.publish(Publication(number, 0, 10 + number, trouble, 2, moment))
        soak.verify()
        assert soak.committed == {0: "g5"}
        assert soak.counts.ended == {
            "PARTIAL_TERMINAL: repair": 1,
            "PARTIAL_TERMINAL: resolve": 1,
            "ENTRY_NOT_SEEN: resolve": 2,
        }
        assert soak.counts.not_published == 2
        # What the soak itself planted in one part is still in the queue when the next one is looked at.
        soak.publish(Publication(5, 0, 20, Trouble.DOUBLED, 2, None))
        soak.verify()
        soak.publish(Publication(6, 0, 21, Trouble.NONE, 2, None))
        soak.verify()
        assert soak.committed == {0: "g7"}
        cluster.execute(f"INSERT INTO {soak.worlds[0].site.database}.target0 VALUES (424242, 'g7')")
        with pytest.raises(SoakError, match="is not g7"):
            soak.verify()
