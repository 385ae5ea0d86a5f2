"""Training from end to end on small data: the everyday cases, and that a run is what it says."""

import json
import re
from pathlib import Path

import pytest
import torch

from bertfit.api import evaluate
from bertfit.config import job_config
from bertfit.errors import BertfitError, ConfigError, DataError, ModelError
from bertfit.jobs import train as train_module
from bertfit.jobs.corpus import read_corpus
from bertfit.jobs.predict import load
from bertfit.jobs.train import TrainReport, train
from jobs.corpora import sentence, write_corpus, write_records


def run(tmp_path: Path, **values: object) -> tuple[TrainReport, list[str]]:
    said: list[str] = []
    settings: dict[str, object] = {
        "model": "tiny",
        "output_dir": tmp_path / "run",
        "num_train_epochs": 1,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "device": "cpu",
        **values,
    }
    return train(job_config(settings), progress=False, say=said.append), said


def losses(folder: Path) -> list[float]:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    train_file = write_corpus(folder / "train.jsonl", 200, seed=1)
    dev_file = write_corpus(folder / "dev.jsonl", 40, seed=2)
    report, __ = run(folder, train_file=train_file, eval_file=dev_file, num_train_epochs=4)
    assert report.scores is not None and report.scores.micro.f1 > 0.95
    return folder


def test_a_run_finds_entities_it_learnt(learned: Path) -> None:
    texts = ["Dora lives in Oslo .", "", "In Kyoto we met Emil today ."]
    found = list(load(str(learned / "run"), device="cpu").entities(texts))
    surfaces = [
        [(t[e.start : e.end], e.label) for e in es] for t, es in zip(texts, found, strict=True)
    ]
    assert surfaces == [
        [("Dora", "PER"), ("Oslo", "LOC")],
        [],
        [("Kyoto", "LOC"), ("Emil", "PER")],
    ]


def test_model_is_an_ordinary_checkpoint(learned: Path) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    folder = learned / "run" / "model"
    model = AutoModelForTokenClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer("Dora lives in Oslo .", return_tensors="pt")
    encoded.pop("token_type_ids", None)
    tags = model(**encoded).logits.argmax(-1)[0].tolist()
    words = dict(zip(encoded.word_ids(), (model.config.id2label[t] for t in tags), strict=True))
    assert (words[0], words[3]) == ("B-PER", "B-LOC")
    assert not list(folder.glob("*.bin")) and not list(folder.glob("*.pt"))


def test_same_seed_same_losses_bit_for_bit(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 40)
    first, __ = run(tmp_path / "a", train_file=data)
    second, __ = run(tmp_path / "b", train_file=data)
    other, __ = run(tmp_path / "c", train_file=data, seed=7)
    assert losses(first.output_dir) == losses(second.output_dir)
    assert losses(first.output_dir) != losses(other.output_dir)


def test_law_2_the_micro_batch_never_changes_the_result(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 64)
    whole, __ = run(tmp_path / "a", train_file=data, dropout=0)
    cut, __ = run(tmp_path / "b", train_file=data, dropout=0, micro_batch_tokens=12)
    pieces = [
        json.loads(line)["cuts"]
        for line in (cut.output_dir / "steps.jsonl").read_text().splitlines()
    ]
    assert all(len(cuts) > 4 for cuts in pieces[:-1])
    assert losses(cut.output_dir) == pytest.approx(losses(whole.output_dir), rel=1e-5)
    # The first step starts from equal weights: only rounding is left.
    assert losses(cut.output_dir)[0] == pytest.approx(losses(whole.output_dir)[0], rel=1e-6)


def test_without_a_dev_file_a_share_is_held_out_and_said(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 40)
    report, said = run(tmp_path, train_file=data, eval_fraction=0.25)
    assert report.scores is not None and report.scores.num_examples >= 10
    assert any("held out" in line for line in said)


def test_equal_texts_are_held_out_together(tmp_path: Path) -> None:
    record = sentence(__import__("random").Random(3))
    data = write_records(tmp_path / "t.jsonl", [record] * 30)
    report, _said = run(tmp_path, train_file=data, eval_fraction=0.2)
    assert report.scores is None, "the one text cannot be on both sides"


@pytest.mark.parametrize("fraction", [0.1, 0.25])
def test_a_text_that_is_repeated_often_is_not_most_of_dev(tmp_path: Path, fraction: float) -> None:
    repeated: dict[str, object] = {"text": "", "entities": []}
    others = [{"text": f"{number} a", "entities": []} for number in range(60)]
    data = write_records(tmp_path / "t.jsonl", [*others, *[repeated] * 40])
    for seed in range(20):
        job = job_config({"model": "tiny", "train_file": data, "eval_fraction": fraction})
        corpus = read_corpus(job.model_copy(update={"seed": seed}), lambda message: None)
        assert len(corpus.dev) == fraction * 100


def test_almost_everything_held_out_leaves_one_text_to_learn_from(tmp_path: Path) -> None:
    data = write_records(tmp_path / "t.jsonl", [{"text": f"{i} a", "entities": []} for i in "abc"])
    job = job_config({"model": "tiny", "train_file": data, "eval_fraction": 0.999})
    assert len(read_corpus(job, lambda message: None).train) == 1


def test_settings_that_need_dev_data_are_named_where_there_are_none(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 20)
    __, said = run(
        tmp_path, train_file=data, eval_fraction=0, early_stopping_patience=2, eval_steps=1
    )
    assert "--early-stopping-patience, --eval-steps: changes nothing" in "\n".join(said)


def test_dev_texts_that_are_all_empty_measure_nothing_and_that_is_said(tmp_path: Path) -> None:
    dev = write_records(tmp_path / "d.jsonl", [{"text": "", "entities": []}] * 3)
    report, said = run(tmp_path, train_file=write_corpus(tmp_path / "t.jsonl", 20), eval_file=dev)
    assert report.scores is None
    assert any(line.startswith("The dev texts are empty") for line in said)


@pytest.mark.parametrize(("warmup", "is_said"), [(0.99, False), (1, False), (2, True), (1e9, True)])
def test_a_warm_up_without_an_end_is_said(tmp_path: Path, warmup: float, is_said: bool) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 20)
    __, said = run(tmp_path, train_file=data, eval_fraction=0, warmup_steps=warmup)
    assert any("never gets to its peak" in line for line in said) == is_said


def test_nothing_held_out_keeps_the_last_model(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 20)
    report, __ = run(tmp_path, train_file=data, eval_fraction=0)
    assert report.scores is None
    assert (report.output_dir / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("eval_steps", "evaluated"), [(None, [2, 4, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (7, [6])]
)
def test_dev_is_scored_every_so_many_steps_and_at_the_end(
    tmp_path: Path, eval_steps: int | None, evaluated: list[int]
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 16)
    report, __ = run(
        tmp_path,
        train_file=data,
        eval_file=data,
        batch_size=8,
        num_train_epochs=3,
        eval_steps=eval_steps,
    )
    scores = json.loads((report.output_dir / "scores.json").read_text())
    assert [each["step"] for each in scores["evaluations"]] == evaluated
    assert report.scores is not None
    assert (report.output_dir / "model" / "config.json").is_file()


def test_several_train_files_are_read_together(tmp_path: Path) -> None:
    files = [write_corpus(tmp_path / f"{i}.jsonl", 20, seed=i) for i in range(3)]
    report, __ = run(tmp_path, train_file=files, eval_fraction=0, batch_size=20)
    assert report.steps == 3


def test_a_label_that_only_dev_has_counts_as_missed_and_is_said_once(tmp_path: Path) -> None:
    train_file = write_corpus(tmp_path / "t.jsonl", 30)
    dev = [{"text": "Acme .", "entities": [{"start": 0, "end": 4, "label": "ORG"}]}]
    report, said = run(
        tmp_path, train_file=train_file, eval_file=write_records(tmp_path / "d.jsonl", dev)
    )
    assert report.scores is not None
    assert report.scores.by_label["ORG"].support == 1
    assert sum("ORG" in line and "Only the dev data" in line for line in said) == 1


def test_one_label_and_a_label_named_o(tmp_path: Path) -> None:
    records = [
        {"text": f"{name} sleeps .", "entities": [{"start": 0, "end": len(name), "label": "O"}]}
        for name in ("Anna", "Bert", "Carl") * 20
    ]
    data = write_records(tmp_path / "t.jsonl", records)
    report, __ = run(tmp_path, train_file=data, eval_file=data, num_train_epochs=4)
    assert report.scores is not None and report.scores.by_label["O"].f1 > 0.9


def test_no_entity_at_all_trains_and_says_so(tmp_path: Path) -> None:
    data = write_records(
        tmp_path / "t.jsonl", [{"text": f"word {i}", "label": []} for i in range(9)]
    )
    report, said = run(tmp_path, train_file=data, eval_file=data)
    assert report.scores is not None and report.scores.micro.f1 == 0.0
    assert any("hold no entity" in line for line in said)


def test_a_folder_that_is_not_empty_is_refused_and_overwrite_takes_only_runs(
    tmp_path: Path,
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 10)
    run(tmp_path, train_file=data)
    with pytest.raises(ConfigError, match="not empty"):
        run(tmp_path, train_file=data)
    run(tmp_path, train_file=data, overwrite=True)
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter1.tex").write_text("x")
    with pytest.raises(ConfigError, match="no run of bertfit"):
        run(tmp_path, train_file=data, output_dir=foreign, overwrite=True)
    assert (foreign / "chapter1.tex").read_text() == "x"


def test_an_unknown_label_is_refused_with_its_line(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 10)
    with pytest.raises(DataError, match=r"t\.jsonl:\d+: label '(PER|LOC)' is not among --labels"):
        run(tmp_path, train_file=data, labels=["ORG"])


@pytest.mark.parametrize("content", ["", "\n\n", '{"text": "no annotation"}\n'])
def test_data_without_an_annotated_text_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(BertfitError, match=r"t\.jsonl"):
        run(tmp_path, train_file=path)


@pytest.mark.parametrize("column", ["2", "²", "--5"])
def test_a_tag_column_that_records_do_not_have_is_refused(tmp_path: Path, column: str) -> None:
    record = {"tokens": ["Anna", "left"], "ner_tags": ["B-PER", "O"]}
    data = write_records(tmp_path / "t.jsonl", [record] * 10)
    with pytest.raises(DataError, match=f"no column '{column}'. Its columns are tokens, ner_tags"):
        run(tmp_path, train_file=data, tag_column=column)


def test_text_of_another_script_is_refused_and_a_little_of_it_warned_about(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 40)
    first, __ = run(tmp_path, train_file=data)
    foreign = [{"text": "ไทย ภาษา", "entities": []}, {"text": "Anna", "entities": []}]
    few = [json.loads(line) for line in data.read_text().splitlines()] + foreign[:1]
    model = str(first.output_dir)
    with pytest.raises(ModelError, match="unknown to the tokenizer"):
        run(
            tmp_path / "x",
            model=model,
            train_file=write_records(tmp_path / "f.jsonl", foreign * 5),
            eval_fraction=0,
        )
    __, said = run(
        tmp_path / "y",
        model=model,
        train_file=write_records(tmp_path / "g.jsonl", few),
        eval_fraction=0,
    )
    assert any(line.startswith("Warning:") for line in said)


def test_text_of_another_script_to_measure_on_is_warned_about(
    learned: Path, tmp_path: Path
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 20)
    foreign = write_records(tmp_path / "f.jsonl", [{"text": "ไทย ภาษา", "entities": []}] * 3)
    warned = r"Warning: 100\.0% of the text to measure on is unknown"
    __, said = run(
        tmp_path / "x",
        model=str(learned / "run"),
        train_file=data,
        eval_file=foreign,
        num_train_epochs=1,
    )
    assert [line for line in said if re.match(warned, line)]
    said = []
    evaluate(str(learned / "run"), [foreign], progress=False, say=said.append)
    assert [line for line in said if re.match(warned, line)]
    said = []
    evaluate(str(learned / "run"), [data], progress=False, say=said.append)
    assert not said


def test_continuing_with_other_labels_keeps_the_head_rows_that_match(
    learned: Path, tmp_path: Path
) -> None:
    records = [
        {
            "text": "Oslo met Anna .",
            "entities": [
                {"start": 0, "end": 4, "label": "ORG"},
                {"start": 9, "end": 13, "label": "PER"},
            ],
        }
    ] * 4
    data = write_records(tmp_path / "t.jsonl", records)
    report, said = run(
        tmp_path,
        model=str(learned / "run"),
        train_file=data,
        eval_fraction=0,
        learning_rate=1e-9,
        head_learning_rate=1e-9,
        weight_decay=0,
    )
    assert any("3 of 5 tags" in line and "B-ORG, I-ORG" in line for line in said)
    from safetensors.torch import load_file

    old = load_file(learned / "run" / "model" / "model.safetensors")["classifier.weight"]
    new = load_file(report.output_dir / "model" / "model.safetensors")["classifier.weight"]
    # Old tags: O B-LOC I-LOC B-PER I-PER. New: O B-ORG I-ORG B-PER I-PER.
    assert torch.allclose(new[[0, 3, 4]], old[[0, 3, 4]], atol=1e-6)
    assert not torch.allclose(new[1], old[1], atol=1e-3)


def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    data = write_records(tmp_path / "t.jsonl", [{"text": "a b", "label": []}] * 8)
    report, said = run(
        tmp_path, train_file=data, eval_file=data, num_train_epochs=9, early_stopping_patience=2
    )
    assert report.steps == 3, "the first is the best, then two without gain"
    assert any("stopping early" in line for line in said)


def test_a_loss_that_is_not_finite_names_layer_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpus(tmp_path / "t.jsonl", 30)
    original = train_module.starting_tagger

    def poisoned(*arguments: object) -> object:
        tagger = original(*arguments)  # type: ignore[arg-type]
        with torch.no_grad():
            tagger.model.model.layers[1].mlp.Wo.weight[3] = float("inf")
        return tagger

    monkeypatch.setattr(train_module, "starting_tagger", poisoned)
    with pytest.raises(ModelError, match=r"Step 1: .*layers\.1\.mlp.*t\.jsonl:\d+"):
        run(tmp_path, train_file=data)


def test_long_text_is_learnt_and_found_whole(learned: Path) -> None:
    rng = __import__("random").Random(5)
    text, gold = "", []
    while len(text) < 100_000:
        one = sentence(rng)
        for entity in one["entities"]:  # type: ignore[attr-defined]
            gold.append((len(text) + entity["start"], len(text) + entity["end"], entity["label"]))
        text += str(one["text"]) + " "
    found = next(iter(load(str(learned / "run"), device="cpu").entities([text])))
    assert {(e.start, e.end, e.label) for e in found} >= set(gold[:50])
    right = len({(e.start, e.end, e.label) for e in found} & set(gold))
    assert right > 0.95 * len(gold)
