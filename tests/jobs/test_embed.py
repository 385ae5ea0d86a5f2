"""Vectors of sentences, tokens and entities, against the model called by hand."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

from bertfit.data.mentions import MARKERS, Mentions
from bertfit.errors import BudgetError, ConfigError, DataError
from bertfit.jobs.embed import Embedder, load_encoder
from bertfit.jobs.predict import load
from bertfit.types import Batch, Example
from jobs.tiny_taggers import save_tiny_tagger, tiny_tokenizer

LAYERS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tagger(tmp_path_factory.mktemp("encoder"), ["O"], layers=LAYERS)


@pytest.fixture(scope="module")
def marked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tagger(tmp_path_factory.mktemp("marked"), ["O"], markers=MARKERS)


def encoder(folder: Path, **options: object) -> Embedder:
    return load_encoder(str(folder), device="cpu", precision="fp32", **options)  # type: ignore[arg-type]


def texts(count: int, seed: int = 0, longest: int = 30) -> list[str]:
    rng = random.Random(seed)
    return [
        "".join(rng.choices("abcdefgh 北京上海我爱.,", k=rng.randint(0, longest)))
        for __ in range(count)
    ]


def by_hand(folder: Path, text: str, layer: int = -1) -> np.ndarray:
    """The states of all tokens, specials included, as transformers gives them."""
    model = AutoModel.from_pretrained(folder).eval()
    encoded = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        states = model(**encoded, output_hidden_states=True).hidden_states[layer][0].numpy()
    assert isinstance(states, np.ndarray)
    return states


def close(a: object, b: object) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=2e-5, rtol=1e-4)


def test_sentence_vectors_are_those_of_transformers(folder: Path) -> None:
    for text in ("abc 北京.", "", "我爱北京"):
        states = by_hand(folder, text)
        close(next(encoder(folder).embeddings([text])), states.mean(0))
        close(next(encoder(folder, pooling="max").embeddings([text])), states.max(0))
        close(next(encoder(folder, pooling="cls").embeddings([text])), states[0])
        unit = next(encoder(folder, normalize=True).embeddings([text]))
        close(unit, states.mean(0) / np.linalg.norm(states.mean(0)))


def test_vectors_do_not_depend_on_the_batch_and_keep_the_order(folder: Path) -> None:
    some = texts(80)
    together = list(encoder(folder, batch_tokens=200).embeddings(some))
    single = encoder(folder)
    for text, vector in zip(some, together, strict=True):
        close(vector, next(single.embeddings([text])))


def test_token_vectors_and_where_the_tokens_are(folder: Path) -> None:
    text = " 北京 ab."
    (found,) = encoder(folder).token_embeddings([text])
    close(found.vectors, by_hand(folder, text)[1:-1])
    assert found.offsets is not None
    assert [text[a:b] for a, b in found.offsets.tolist()] == ["北", "京", "a", "b", "."]
    empty, full = encoder(folder).token_embeddings(["", "a"])
    assert empty.vectors.shape == (0, 32) and full.vectors.shape == (1, 32)


def test_layers_are_those_of_transformers_and_the_rest_is_freed(folder: Path) -> None:
    text = "abc 北京"
    whole = sum(p.numel() for p in encoder(folder).model.parameters())
    for layer in range(LAYERS + 1):
        found = encoder(folder, layers=[layer])
        close(next(found.embeddings([text])), by_hand(folder, text, layer).mean(0))
        kept = sum(p.numel() for p in found.model.parameters())
        assert kept == whole - (LAYERS - layer) * (whole - kept) / max(LAYERS - layer, 1)
        assert (kept < whole) == (layer < LAYERS)
    both = next(encoder(folder, layers=[1, -1]).embeddings([text]))
    close(both, (by_hand(folder, text, 1) + by_hand(folder, text, LAYERS)).mean(0))
    for wrong in ([4], [-5], []):
        with pytest.raises(ConfigError, match="has 3 layers"):
            encoder(folder, layers=wrong)


@pytest.mark.parametrize("model_type", ["distilbert", "electra", "roberta", "modernbert", "albert"])
def test_other_families_lose_their_upper_layers_too(tmp_path: Path, model_type: str) -> None:
    folder = save_tiny_tagger(tmp_path, ["O"], layers=LAYERS, model_type=model_type)
    short = encoder(folder, layers=[2])
    if model_type != "modernbert":  # its last norm stands above the last layer
        close(next(short.embeddings(["abc de"])), by_hand(folder, "abc de", 2).mean(0))
    whole = encoder(folder)
    close(next(whole.embeddings(["abc de"])), by_hand(folder, "abc de").mean(0))
    if model_type != "albert":  # one layer, run many times
        assert sum(p.numel() for p in short.model.parameters()) < sum(
            p.numel() for p in whole.model.parameters()
        )


def test_a_long_text_is_the_mean_of_all_its_tokens(folder: Path) -> None:
    """Windows give every token once: the mean over tokens is that of the token vectors."""
    text = " ".join(texts(12, seed=4))
    model = encoder(folder)
    (tokens,) = model.token_embeddings([text])
    assert len(tokens.vectors) > 100, "several windows of 64"
    (chunk,) = model.chunks([Example(id="0", text=text)], "sentence")
    ids = [i for w in chunk.windows for i in w.input_ids[w.first_token[w.owned[0] : w.owned[1]]]]
    assert ids == tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]
    (vector,) = model.embeddings([text])
    first, last = chunk.windows[0], chunk.windows[-1]
    batch = [by_ids(folder, window.input_ids) for window in (first, last)]
    total = tokens.vectors.sum(0) + batch[0][0] + batch[1][-1]
    close(vector, total / (len(tokens.vectors) + 2))
    (highest,) = encoder(folder, pooling="max").embeddings([text])
    close(highest, np.maximum(tokens.vectors.max(0), np.maximum(batch[0][0], batch[1][-1])))
    (cls,) = encoder(folder, pooling="cls").embeddings([text])
    close(cls, batch[0][0])


def by_ids(folder: Path, ids: Sequence[int]) -> np.ndarray:
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        states = model(torch.tensor([[int(i) for i in ids]])).last_hidden_state[0].numpy()
    assert isinstance(states, np.ndarray)
    return states


def test_entity_vectors_from_spans_and_from_markers(folder: Path) -> None:
    text = "abc is in 北京."
    states = by_hand(folder, text)
    expected = [states[1:4].mean(0), states[8:10].mean(0)]
    mentions = Mentions(text=text, spans=((0, 3), (10, 12)))
    marked = "[E1]abc[/E1] is in [E2]北京[/E2]."
    for each in (mentions, marked):
        (found,) = encoder(folder).entity_embeddings([each])
        close(found, expected)
    (highest,) = encoder(folder, pooling="max").entity_embeddings([mentions])
    close(highest, [states[1:4].max(0), states[8:10].max(0)])


def test_a_model_that_knows_markers_reads_them(marked_folder: Path) -> None:
    marked = "[E1]abc[/E1] is in [E2]北京[/E2]."
    states = by_hand(marked_folder, marked)
    ids = AutoTokenizer.from_pretrained(marked_folder)(marked)["input_ids"]
    names = AutoTokenizer.from_pretrained(marked_folder).convert_ids_to_tokens(ids)
    places = [names.index(marker) for marker in MARKERS]
    spans = Mentions(text="abc is in 北京.", spans=((0, 3), (10, 12)))
    for each in (marked, spans):
        (at_marker,) = encoder(marked_folder, pooling="marker").entity_embeddings([each])
        close(at_marker, [states[places[0]], states[places[2]]])
        (mean,) = encoder(marked_folder).entity_embeddings([each])
        close(
            mean,
            [
                states[places[0] + 1 : places[1]].mean(0),
                states[places[2] + 1 : places[3]].mean(0),
            ],
        )


@pytest.mark.parametrize("length", [-5, 0, 1, 2])
def test_a_window_has_room_for_one_token_at_the_least(folder: Path, length: int) -> None:
    with pytest.raises(
        ConfigError, match=f"max_length of {length} tokens holds nothing.*at least 3"
    ):
        encoder(folder, max_length=length)
    (vector,) = encoder(folder, max_length=3, pooling="mean").embeddings(["abc abc"])
    assert np.isfinite(vector).all()


@pytest.mark.parametrize("tokens", [0, -1])
def test_batches_of_no_token_are_refused(folder: Path, tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_tokens={tokens}: must be 1 or more"):
        encoder(folder, batch_tokens=tokens)
    with pytest.raises(ConfigError, match=f"batch_tokens={tokens}: must be 1 or more"):
        load(str(folder), device="cpu", batch_tokens=tokens)


def test_pooling_at_the_marker_needs_a_model_that_knows_it(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not know \[E1\]"):
        list(encoder(folder, pooling="marker").entity_embeddings(["[E1]a[/E1] [E2]b[/E2]"]))


def test_a_text_without_entities_is_refused_by_its_place(folder: Path) -> None:
    with pytest.raises(DataError, match="1: no entity pair"):
        list(encoder(folder).entity_embeddings(["[E1]a[/E1] [E2]b[/E2]", "nothing"]))


def test_a_tagger_gives_vectors_of_its_encoder(folder: Path) -> None:
    predictor = load(str(folder), device="cpu", precision="fp32")
    close(next(predictor.embeddings(["abc"])), by_hand(folder, "abc").mean(0))
    (pair,) = predictor.entity_embeddings(["[E1]a[/E1] b [E2]c[/E2]"])
    assert pair.shape == (2, 32)
    assert AutoModelForTokenClassification.from_pretrained(folder) is not None
    assert list(predictor.entities(["abc"])), "the tagger still tags"


def test_the_folder_says_how_it_pools(folder: Path, tmp_path: Path) -> None:
    import json
    import shutil

    shutil.copytree(folder, tmp_path / "st")
    modules = [{"type": "sentence_transformers.models.Normalize"}]
    (tmp_path / "st" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "st" / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "st" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    states = by_hand(folder, "abc")
    (vector,) = encoder(tmp_path / "st").embeddings(["abc"])
    close(vector, states[0] / np.linalg.norm(states[0]))


def test_a_batch_that_does_not_fit_is_cut(folder: Path) -> None:
    some = texts(60, seed=2)
    expected = list(encoder(folder).embeddings(some))
    small = encoder(folder)
    inner = small.forward

    def forward(batch: Batch) -> torch.Tensor:
        if batch.num_tokens > 60:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inner(batch)

    small.forward = forward
    close(list(small.embeddings(some)), expected)
    with pytest.raises(BudgetError, match="does not fit the memory"):
        list(small.embeddings(["a", "a b c d e " * 16]))


def test_a_single_string_is_refused(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"\[text\]"):
        next(encoder(folder).embeddings("abc"))
