"""A predictor over any text: order, batches, windows, foreign tags, memory that ends."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertfit.data.windows import TaggedWindow
from bertfit.errors import BudgetError
from bertfit.jobs.foreign_tags import tag_meaning
from bertfit.jobs.predict import Predictor, load
from bertfit.models.tagger import load_tagger
from bertfit.types import Batch, Example, LabelScheme, Problem, Window
from jobs.tiny_taggers import save_tiny_tagger

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tagger(tmp_path_factory.mktemp("tagger"), TAGS)


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Predictor:
    tagger = replace(load_tagger(folder), split="characters")
    return Predictor(tagger, device=torch.device("cpu"), precision="fp32")


def texts(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    rng = random.Random(seed)
    letters = "abcdefgh 北京上海我爱 .,"
    return ["".join(rng.choices(letters, k=rng.randint(0, longest))) for __ in range(count)]


def spans(predictor: Predictor, some: Sequence[str]) -> list[list[tuple[int, int, str]]]:
    return [[(e.start, e.end, e.label) for e in found] for found in predictor.entities(some)]


def test_alone_mixed_and_sorted_give_the_same_labels(predictor: Predictor) -> None:
    some = texts(60)
    together = spans(predictor, some)
    assert sum(map(len, together)) > 100
    assert [spans(predictor, [text])[0] for text in some] == together
    order = sorted(range(len(some)), key=lambda i: len(some[i]))
    assert spans(predictor, [some[i] for i in order]) == [together[i] for i in order]


def test_logits_do_not_depend_on_the_batch(predictor: Predictor) -> None:
    windows = [
        window
        for chunk in predictor.chunks(Example(id=str(i), text=t) for i, t in enumerate(texts(30)))
        for window in chunk.windows
    ]
    from bertfit.data.batches import pad

    def logits(part: Sequence[Window]) -> list[torch.Tensor]:
        with torch.inference_mode():
            out = predictor.forward(pad(part, 0))
        return [out[row, : len(window.input_ids)] for row, window in enumerate(part)]

    together = logits(windows)
    for window, expected in zip(windows, together, strict=True):
        torch.testing.assert_close(logits([window])[0], expected, atol=1e-5, rtol=0)


def test_order_and_count_are_those_of_the_input(predictor: Predictor) -> None:
    some = ["", "   ", *texts(50, seed=3), "", "\n"]
    examples = [Example(id=str(i), text=text) for i, text in enumerate(some)]
    found = list(predictor.annotate(examples))
    assert [example for example, __ in found] == examples
    for example, entities in found:
        for entity in entities:
            surface = example.text[entity.start : entity.end]
            assert surface and surface == surface.strip()


def test_a_string_is_refused_where_several_texts_are_meant(predictor: Predictor) -> None:
    with pytest.raises(TypeError, match=r"entities\(\[text\]\)"):
        next(predictor.entities("我爱北京"))


def test_windows_agree_with_the_whole_text_where_it_fits(folder: Path) -> None:
    """With an overlap that covers what attention can see, the cut changes nothing."""
    whole = load(str(folder), device="cpu", precision="fp32")
    text = texts(1, seed=5, longest=60)[0]
    long_text = " ".join(texts(40, seed=6))
    assert spans(whole, [text]) == spans(whole, [text])
    (chunk,) = whole.chunks([Example(id="0", text=long_text)])
    owned = [unit for w in chunk.windows for unit in w.units[w.owned[0] : w.owned[1]].tolist()]
    assert len(chunk.windows) > 3
    assert owned == sorted(owned) and len({tuple(unit) for unit in owned}) == len(owned)
    covered = "".join(long_text[a:b] for a, b in owned)
    assert covered == "".join(long_text.split())


class _Scripted(Predictor):
    """A predictor whose model says what a test wants, per unit of the text."""

    def say(self, tags: Sequence[str]) -> None:
        ids = [self.scheme.tags.index(tag) for tag in tags]

        def forward(batch: Batch) -> torch.Tensor:
            rows, width = batch.input_ids.shape
            logits = torch.zeros((rows, width, len(self.scheme.tags)))
            for position, tag in enumerate(ids):
                logits[:, position + 1, tag] = 9.0
            return logits

        self.forward = forward


def scripted(tmp_path: Path, tags: Sequence[str], constrained: bool = True) -> _Scripted:
    loaded = load(str(save_tiny_tagger(tmp_path, tags)), device="cpu", precision="fp32")
    return _Scripted(
        loaded.tagger, device=torch.device("cpu"), precision="fp32", constrained=constrained
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["O", "B-LOC", "I-LOC"], ["O", "O", "B-LOC", "I-LOC"]),
        (["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"], ["O", "O", "B-LOC", "E-LOC"]),
        (["O", "B-LOC", "M-LOC", "E-LOC", "S-LOC"], ["O", "O", "B-LOC", "E-LOC"]),
        (["O", "B_LOC", "I_LOC"], ["O", "O", "B-LOC", "I-LOC"]),
        (["O", "LOC-B", "LOC-I"], ["O", "O", "B-LOC", "I-LOC"]),
        (["LOC", "O"], ["O", "O", "I-LOC", "I-LOC"]),
        (["[PAD]", "O", "B-LOC", "I-LOC", "LABEL_4"], ["O", "O", "B-LOC", "I-LOC"]),
    ],
)
def test_beijing_is_one_entity_in_every_notation(
    tmp_path: Path, names: list[str], said: list[str]
) -> None:
    predictor = scripted(tmp_path, names)
    predictor.say(said)
    text = "我爱北京"
    (found,) = predictor.entities([text])
    assert [(text[e.start : e.end], e.label) for e in found] == [("北京", "LOC")]


def test_tags_without_a_meaning_are_reported() -> None:
    def meaning(*tags: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found = tag_meaning(LabelScheme(labels=(), encoding="none", tags=tags))
        return found.scheme.tags, found.unmapped

    assert meaning("O", "B-PER", "I-PER", "LABEL_3", "[PAD]") == (
        ("O", "B-PER", "I-PER", "O", "O"),
        ("LABEL_3", "[PAD]"),
    )
    assert meaning("LABEL_0", "LABEL_1") == (
        ("I-LABEL_0", "I-LABEL_1"),
        ("LABEL_0", "LABEL_1"),
    )
    assert meaning("NOUN", "VERB") == (("NOUN", "VERB"), ())


def test_iob1_models_may_begin_with_an_inside_tag() -> None:
    """dbmdz/bert-large-cased-finetuned-conll03-english has no B-PER and begins LOC with I-."""
    tags = ("B-LOC", "B-ORG", "I-LOC", "I-ORG", "I-PER", "O")
    found = tag_meaning(LabelScheme(labels=(), encoding="none", tags=tags))
    assert not found.constrained and found.scheme.encoding == "bio"
    both = tag_meaning(LabelScheme(labels=(), encoding="none", tags=TAGS))
    assert both.constrained


def test_an_illegal_sequence_is_decoded_unless_switched_off(tmp_path: Path) -> None:
    names = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    strict = scripted(tmp_path, names)
    loose = scripted(tmp_path, names, constrained=False)
    for predictor in (strict, loose):
        predictor.say(["B-LOC", "I-PER", "I-PER", "O"])
    (found,) = strict.entities(["abc."])
    assert len(found) <= 1
    (found,) = loose.entities(["a b c."])
    assert [e.label for e in found] == ["LOC", "PER"]


class _Small:
    """A forward that has room for so many padded tokens, and says so as a card does."""

    def __init__(self, predictor: Predictor, room: int) -> None:
        self.inner, self.room, self.failures = predictor.forward, room, 0

    def __call__(self, batch: Batch) -> torch.Tensor:
        if batch.num_tokens > self.room:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.inner(batch)


def test_a_batch_that_does_not_fit_is_cut_and_the_cut_remembered(folder: Path) -> None:
    some = texts(200, seed=9)
    expected = spans(load(str(folder), device="cpu", precision="fp32"), some)
    predictor = load(str(folder), device="cpu", precision="fp32")
    small = predictor.forward = _Small(predictor, 300)
    assert spans(predictor, some) == expected
    assert 1 <= small.failures <= 4


def test_a_window_that_does_not_fit_alone_is_reported(folder: Path) -> None:
    predictor = load(str(folder), device="cpu", precision="fp32")
    predictor.forward = _Small(predictor, 20)
    examples = [Example(id=str(i), text=t) for i, t in enumerate(["a b", "a" * 17 + " b c d", "c"])]
    problems: list[Problem] = []
    (chunk,) = predictor.chunks(examples, "characters")
    found = predictor.annotate_chunk(chunk, problems.append)
    assert [example.id for example, __ in found] == ["0", "2"]
    assert [problem.kind for problem in problems] == ["window-too-large"]
    with pytest.raises(BudgetError, match="tokens does not fit"):
        list(predictor.annotate(examples))


def test_other_errors_are_not_taken_for_memory(folder: Path) -> None:
    predictor = load(str(folder), device="cpu", precision="fp32")

    def broken(batch: Batch) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    predictor.forward = broken
    with pytest.raises(RuntimeError, match="mat1"):
        list(predictor.entities(["abc"]))


def test_tags_are_kept_without_their_batch(predictor: Predictor) -> None:
    chunk = next(iter(predictor.chunks([Example(id="0", text="abc def")])))
    tagged: list[TaggedWindow] = list(predictor.tag(iter(chunk.windows)))
    assert all(result.tag_ids.base is None for result in tagged)
    assert all(isinstance(result.tag_ids, np.ndarray) for result in tagged)
