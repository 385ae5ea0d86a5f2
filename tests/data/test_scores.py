import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nervaluate.entities import Entity as NervaluateEntity  # type: ignore[import-untyped]
from nervaluate.strategies import (  # type: ignore[import-untyped]
    EntityTypeEvaluation,
    ExactEvaluation,
    PartialEvaluation,
    StrictEvaluation,
)
from seqeval.metrics import classification_report  # type: ignore[import-untyped]
from seqeval.scheme import IOB2  # type: ignore[import-untyped]

from bertfit.data.mistakes import mistakes
from bertfit.data.scores import SCHEMAS, Scorer
from bertfit.data.tags import encode
from bertfit.types import Entity, Example, Scores

LENGTH = 14
ORACLES = {
    "strict": StrictEvaluation(),
    "exact": ExactEvaluation(),
    "partial": PartialEvaluation(),
    "ent_type": EntityTypeEvaluation(),
}


def entities(*spans: tuple[int, int, str]) -> list[Entity]:
    return [Entity(start=a, end=b, label=label) for a, b, label in spans]


@st.composite
def flat_entities(draw: st.DrawFn) -> list[Entity]:
    found, position = [], 0
    while position < LENGTH and draw(st.booleans()):
        start = position + draw(st.integers(0, 2))
        end = start + draw(st.integers(1, 4))
        if end > LENGTH:
            break
        found.append(Entity(start=start, end=end, label=draw(st.sampled_from("ABC"))))
        position = end
    return found


@st.composite
def any_entities(draw: st.DrawFn, length: int = LENGTH) -> list[Entity]:
    """Nested, crossing and repeated entities."""
    spans = st.tuples(st.integers(0, length - 1), st.integers(1, 5), st.sampled_from("AB"))
    return [
        Entity(start=start, end=min(start + size, length), label=label)
        for start, size, label in draw(st.lists(spans, max_size=6))
    ]


def score(*pairs: tuple[list[Entity], list[Entity]]) -> Scores:
    scorer = Scorer()
    for gold, predicted in pairs:
        scorer.add(gold, predicted)
    return scorer.scores()


@pytest.mark.filterwarnings("ignore")  # seqeval warns where a ratio is 0 / 0
@settings(max_examples=100, deadline=None)
@given(pairs=st.lists(st.tuples(flat_entities(), flat_entities()), min_size=1, max_size=4))
def test_strict_scores_are_those_of_seqeval(
    pairs: list[tuple[list[Entity], list[Entity]]],
) -> None:
    gold, predicted = (
        [encode([(e.start, e.end, e.label) for e in pair[side]], LENGTH, "iob2") for pair in pairs]
        for side in (0, 1)
    )
    found = score(*pairs)
    if not found.by_label:
        assert (found.micro.f1, found.macro.f1) == (0.0, 0.0)
        return
    report = classification_report(
        gold, predicted, mode="strict", scheme=IOB2, output_dict=True, zero_division=0
    )
    for label in found.by_label:
        ours, theirs = found.by_label[label], report[label]
        assert ours.precision == pytest.approx(theirs["precision"])
        assert ours.recall == pytest.approx(theirs["recall"])
        assert ours.f1 == pytest.approx(theirs["f1-score"])
        assert ours.support == theirs["support"]
    assert set(found.by_label) == set(report) - {"micro avg", "macro avg", "weighted avg"}
    for name, ours in (("micro avg", found.micro), ("macro avg", found.macro)):
        assert ours.precision == pytest.approx(report[name]["precision"])
        assert ours.recall == pytest.approx(report[name]["recall"])
        assert ours.f1 == pytest.approx(report[name]["f1-score"])
        assert ours.support == report[name]["support"]


@settings(max_examples=120, deadline=None)
@given(pairs=st.lists(st.tuples(any_entities(), any_entities() | flat_entities()), max_size=3))
def test_partial_counts_are_those_of_nervaluate(
    pairs: list[tuple[list[Entity], list[Entity]]],
) -> None:
    found = score(*pairs)
    for schema in SCHEMAS:
        counts = dict.fromkeys(("correct", "incorrect", "partial", "missed", "spurious"), 0)
        for pair in pairs:
            # nervaluate's ends are inclusive, and its counts depend on the order.
            gold, predicted = (
                [NervaluateEntity(e.label, e.start, e.end - 1) for e in sorted(side)]
                for side in pair
            )
            result, _indices = ORACLES[schema].evaluate(gold, predicted, ["A", "B", "C"])
            for name in counts:
                counts[name] += getattr(result, name)
        ours = found.partial[schema]
        assert {name: ours[name] for name in counts} == counts
        total = type(result)(**counts) if pairs else None
        if total is not None:
            total.compute_metrics(partial_or_type=schema in ("partial", "ent_type"))
            assert ours["precision"] == pytest.approx(total.precision)
            assert ours["recall"] == pytest.approx(total.recall)
            assert ours["f1"] == pytest.approx(total.f1)


def test_an_overlap_of_under_one_percent_of_the_gold_entity_counts_for_nothing() -> None:
    gold = entities((0, 200, "A"))
    assert score((gold, entities((199, 202, "A")))).partial["partial"]["partial"] == 0
    assert score((gold, entities((198, 202, "A")))).partial["partial"]["partial"] == 1


def test_scores_worked_by_hand() -> None:
    found = score(
        (entities((0, 2, "A"), (3, 5, "A"), (6, 7, "B")), entities((0, 2, "A"), (3, 4, "A"))),
        (entities((0, 1, "B")), entities((0, 1, "A"), (4, 5, "C"))),
    )
    assert (found.micro.correct, found.micro.predicted, found.micro.support) == (1, 4, 4)
    assert found.micro.f1 == pytest.approx(0.25)
    assert found.by_label["A"].precision == pytest.approx(1 / 3)
    assert found.by_label["A"].recall == pytest.approx(1 / 2)
    assert found.by_label["A"].f1 == pytest.approx(0.4)
    assert found.by_label["B"].f1 == found.by_label["C"].f1 == 0.0
    assert found.macro.f1 == pytest.approx(0.4 / 3)
    assert found.partial["partial"]["precision"] == pytest.approx((2 + 0.5) / 4)
    assert found.num_examples == 2 and found.accuracy is None


def test_nested_gold_entities_count_as_missed() -> None:
    found = score((entities((0, 4, "A"), (0, 2, "A"), (0, 4, "A")), entities((0, 4, "A"))))
    assert (found.micro.correct, found.micro.support, found.micro.precision) == (1, 3, 1.0)


def test_nothing_gold_and_nothing_predicted_has_defined_scores() -> None:
    for found in (score(), score(([], [])), score((entities((0, 1, "A")), []))):
        assert (found.micro.precision, found.micro.recall, found.micro.f1) == (0.0, 0.0, 0.0)
        assert (found.macro.precision, found.macro.recall, found.macro.f1) == (0.0, 0.0, 0.0)
        assert all(ratios["f1"] == 0.0 for ratios in found.partial.values())


def test_part_of_speech_has_the_accuracy_of_words() -> None:
    scorer = Scorer("pos")
    scorer.add(
        entities((0, 1, "NOUN"), (1, 2, "VERB"), (2, 3, "NOUN"), (3, 4, "X")),
        entities((0, 1, "NOUN"), (1, 2, "NOUN"), (2, 3, "NOUN"), (3, 4, "NOUN")),
    )
    assert scorer.scores().accuracy == 0.5


def test_word_segmentation_has_the_f1_of_words() -> None:
    # 北京|大学|生 against 北京|大学生: one word of two found, of three predicted.
    found = score(
        (entities((0, 2, "W"), (2, 5, "W")), entities((0, 2, "W"), (2, 4, "W"), (4, 5, "W")))
    )
    assert found.micro.precision == pytest.approx(1 / 3)
    assert found.micro.recall == pytest.approx(1 / 2)


# Were all entities compared with all, this would take minutes; see `test_span_tree.py`.
def test_a_long_text_with_many_entities_is_scored() -> None:
    gold = entities(*((i, i + 2, "A") for i in range(0, 60_000, 3)))
    predicted = entities(*((i, i + 1 + i % 2, "A") for i in range(0, 60_000, 3)))
    found = score((gold, predicted))
    assert (
        len(mistakes(Example(id="x", text=" " * 60_002, entities=tuple(gold)), predicted)) == 10_000
    )
    assert found.micro.correct == 10_000


# Mistakes.


def test_every_kind_of_mistake_is_named_and_shown() -> None:
    text = "Anna of Bonn met Karl Marx at Acme in Rome today"
    example = Example(
        id="e",
        text=text,
        entities=tuple(
            entities(
                (0, 4, "PER"), (8, 12, "LOC"), (17, 26, "PER"), (30, 34, "ORG"), (38, 42, "LOC")
            )
        ),
    )
    predicted = entities((0, 4, "PER"), (17, 21, "PER"), (30, 34, "LOC"), (43, 48, "LOC"))
    found = mistakes(example, predicted)
    assert [mistake.kind for mistake in found] == [
        "missed",
        "wrong-edge",
        "wrong-type",
        "missed",
        "invented",
    ]
    assert [str(mistake) for mistake in found] == [
        "e: missed LOC 'Bonn' 8-12 in: Anna of [Bonn] met Karl Marx at Ac…",
        "e: wrong edge: PER 'Karl' 17-21 should be PER 'Karl Marx' 17-26 in: Anna of Bonn met [{Karl} Marx] at Acme in Rome tod…",
        "e: wrong type: LOC 'Acme' 30-34 should be ORG 'Acme' 30-34 in: …nn met Karl Marx at [{Acme}] in Rome today",
        "e: missed LOC 'Rome' 38-42 in: …arl Marx at Acme in [Rome] today",
        "e: invented LOC 'today' 43-48 in: …arx at Acme in Rome {today}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "predicted", "kinds"),
    [
        ([], [(0, 1, "A")], ["invented"]),
        ([(0, 1, "A")], [], ["missed"]),
        ([(0, 4, "A")], [(0, 2, "A"), (3, 4, "A")], ["wrong-edge", "invented"]),
        ([(0, 2, "A"), (2, 4, "A")], [(0, 4, "A")], ["wrong-edge", "missed"]),
        ([(0, 4, "A")], [(2, 6, "B")], ["wrong-type"]),
        # The exact span wins over the longer overlap, and the same label over another.
        ([(0, 4, "A"), (2, 3, "B")], [(2, 3, "A")], ["missed", "wrong-type"]),
        ([(0, 4, "B"), (3, 8, "A")], [(0, 5, "A")], ["missed", "wrong-edge"]),
        ([(0, 4, "A"), (0, 4, "A")], [(0, 4, "A")], ["missed"]),
    ],
)
def test_mistakes_worked_by_hand(
    gold: list[tuple[int, int, str]], predicted: list[tuple[int, int, str]], kinds: list[str]
) -> None:
    example = Example(id="e", text="x" * 10, entities=tuple(entities(*gold)))
    assert [mistake.kind for mistake in mistakes(example, entities(*predicted))] == kinds


@settings(deadline=None)
@given(gold=any_entities(), predicted=any_entities())
def test_every_entity_is_right_or_in_one_mistake(
    gold: list[Entity], predicted: list[Entity]
) -> None:
    example = Example(id="e", text="x\n" * LENGTH, entities=tuple(gold))
    found = mistakes(example, predicted)
    correct = score((gold, predicted)).micro.correct
    assert sum(mistake.gold is not None for mistake in found) == len(gold) - correct
    assert sum(mistake.predicted is not None for mistake in found) == len(predicted) - correct
    assert all("\n" not in str(mistake) for mistake in found)


def test_a_mistake_in_a_very_long_entity_stays_one_short_line() -> None:
    example = Example(id="e", text="x" * 9_000, entities=tuple(entities((0, 9_000, "A"))))
    (mistake,) = mistakes(example, entities((8_999, 9_000, "A")))
    assert len(str(mistake)) < 600
    assert mistake.context().startswith("[xx") and mistake.context().endswith("{x}]")


def test_an_example_without_annotation_has_no_mistakes() -> None:
    assert mistakes(Example(id="e", text="xx"), entities((0, 1, "A"))) == []
