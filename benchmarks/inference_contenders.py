"""What `inference.py` measures: each is made in a process of its own and called with work.

All taggers get the tokens that bertfit makes, which the model was trained on: else they would give
other answers.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bertfit.data.windows import windows
from bertfit.engine.backends import Forward, torch_tagger
from bertfit.engine.inference import Batching, batching_of, make_ready
from bertfit.engine.openvino_backend import openvino_tagger
from bertfit.engine.prepacked import PrepackedLinear
from bertfit.jobs.backend_choice import backend_of
from bertfit.jobs.embed import load_encoder
from bertfit.jobs.predict import load, text_tokenizer
from bertfit.models.encoder import build_classifier, load_tokenizer
from bertfit.types import Example, Window

Spans = list[tuple[int, int, str]]
Tag = Callable[[list[str]], list[Spans]]
Embed = Callable[[list[str]], np.ndarray]
BATCH_TOKENS = 2048
CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class SameTokens:
    """The windows that bertfit makes of texts, one a text."""

    def __init__(self, folder: Path) -> None:
        loaded = load_tokenizer(folder)
        self.fast, self.pad_id = loaded.fast, loaded.pad_id
        self._tokenizer = text_tokenizer(loaded)
        self._info = json.loads((folder / "bertfit.json").read_text(encoding="utf-8"))

    def windows(self, texts: Sequence[str]) -> list[Window]:
        """Cut texts into windows; a text that is none or several ends the program."""
        found = list(
            windows(
                (Example(id=str(i), text=text) for i, text in enumerate(texts)),
                self._tokenizer,
                scheme=None,
                max_length=self._info["max_length"],
                overlap=self._info["overlap"],
                split=self._info["split"],
            )
        )
        if [window.index for window in found] != list(range(len(texts))):
            raise SystemExit("a text is empty or longer than a window: give others")
        return found


def quiet() -> None:
    """Keep transformers from printing between the lines of the table."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _token_classifier(folder: Path, dtype: torch.dtype) -> Any:
    quiet()
    return transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=dtype).eval()


def pipeline_tagger(folder: Path) -> Tag:
    """`transformers.pipeline` as its page says; only its tokens are not its own.

    `simple` looks at every piece of a word; what stands behind the first of a unit was never
    trained, so it counts as special here.
    """
    tokens = SameTokens(folder)

    class Pipeline(transformers.TokenClassificationPipeline):
        def preprocess(self, sentence, offset_mapping=None, **params):
            (window,) = tokens.windows([sentence])
            count = len(window.input_ids)
            special = np.ones(count, dtype=np.int64)
            special[window.first_token] = 0
            offsets = np.zeros((count, 2), dtype=np.int64)
            offsets[window.first_token] = window.units
            yield {
                "input_ids": torch.from_numpy(window.input_ids.astype(np.int64))[None],
                "attention_mask": torch.ones(1, count, dtype=torch.int64),
                "special_tokens_mask": torch.from_numpy(special)[None],
                "offset_mapping": torch.from_numpy(offsets)[None],
                "sentence": sentence,
                "is_last": True,
            }

    tag = Pipeline(
        model=_token_classifier(folder, torch.float32),
        tokenizer=tokens.fast,
        batch_size=16,
        aggregation_strategy="simple",
        device="cpu",
    )
    return lambda texts: [
        [(e["start"], e["end"], e["entity_group"]) for e in found] for found in tag(texts)
    ]


def careful_tagger(folder: Path, precision: str, autocast: bool) -> Tag:
    """What a careful user writes: sorted by length, padded to the longest, `inference_mode`."""
    tokens = SameTokens(folder)
    dtype = DTYPES[precision]
    model = _token_classifier(folder, torch.float32 if autocast else dtype)
    names = model.config.id2label

    def run(texts: list[str]) -> list[Spans]:
        found: list[Spans] = [[] for __ in texts]
        cut = tokens.windows(texts)
        with torch.inference_mode(), torch.autocast("cpu", dtype, enabled=autocast):
            for batch in _length_batches([len(w.input_ids) for w in cut]):
                rows = [torch.from_numpy(cut[i].input_ids.astype(np.int64)) for i in batch]
                ids = torch.nn.utils.rnn.pad_sequence(
                    rows, batch_first=True, padding_value=tokens.pad_id
                )
                lengths = torch.tensor([len(row) for row in rows])
                mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
                tags = model(input_ids=ids, attention_mask=mask).logits.argmax(-1).numpy()
                for i, row in zip(batch, tags, strict=True):
                    said = [names[tag] for tag in row[cut[i].first_token].tolist()]
                    found[i] = _spans(cut[i].units.tolist(), said)
        return found

    return run


def _length_batches(lengths: Sequence[int]) -> list[list[int]]:
    """Batches of indices, longest first, each of at most `BATCH_TOKENS` padded tokens."""
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * width <= BATCH_TOKENS:
            batches[-1].append(index)
        else:
            batches.append([index])
            width = lengths[index]
    return batches


def _spans(units: Sequence[Sequence[int]], tags: Sequence[str]) -> Spans:
    """Join B-X, I-X, I-X into one span; an I-X without a beginning begins one."""
    spans: Spans = []
    before = "O"
    for (start, end), tag in zip(units, tags, strict=True):
        if tag.startswith("I-") and before[2:] == tag[2:]:
            spans[-1] = (spans[-1][0], end, tag[2:])
        elif tag != "O":
            spans.append((start, end, tag[2:]))
        before = tag
    return spans


def bertfit_tagger(folder: Path, precision: str, backend: str, constrained: bool) -> Tag:
    """bertfit; unconstrained it gives the answers of the others, which know no such thing."""
    predictor = load(
        str(folder),
        device="cpu",
        precision=None if backend == "onnx" else precision,  # type: ignore[arg-type]
        backend=backend_of(backend),
        constrained=constrained,
    )
    return lambda texts: [
        [(e.start, e.end, e.label) for e in found] for found in predictor.entities(texts)
    ]


def products_alone(folder: Path, precision: str) -> Callable[[list[str]], int]:
    """The products of a tagger's linear layers on the rows of bertfit's batches; nothing else.

    No tagger is faster that multiplies at this rate. What is called gives the operations.
    """
    tokens = SameTokens(folder)
    model = _token_classifier(folder, torch.float32)
    make_ready(model, CPU, precision)  # type: ignore[arg-type]
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear | PrepackedLinear)]
    batching = batching_of(model, CPU, tokens.pad_id)
    widths = {layer.in_features for layer in layers}
    states = {width: torch.randn(BATCH_TOKENS, width).to(DTYPES[precision]) for width in widths}

    def run(texts: list[str]) -> int:
        operations = 0
        with torch.inference_mode():
            for part in batching.cut(tokens.windows(texts), BATCH_TOKENS):
                rows = batching.batch(part).input_ids.size
                for layer in layers:
                    layer(states[layer.in_features][:rows])
                    operations += 2 * rows * layer.in_features * layer.out_features
        return operations

    return run


def margin_finder(folder: Path) -> Callable[[list[str]], list[np.ndarray]]:
    """How sure fp32 is: for every unit the start, the end and log p(best) - log p(second)."""
    tokens = SameTokens(folder)
    model = _token_classifier(folder, torch.float32)

    def run(texts: list[str]) -> list[np.ndarray]:
        found = []
        with torch.inference_mode():
            for window in tokens.windows(texts):
                ids = torch.from_numpy(window.input_ids.astype(np.int64))[None]
                best = model(input_ids=ids).logits[0, window.first_token].topk(2).values
                margins = (best[:, 0] - best[:, 1]).numpy()
                found.append(np.column_stack([window.units, margins]))
        return found

    return run


def sentence_transformer(folder: Path, precision: str) -> Embed:
    from sentence_transformers import SentenceTransformer

    quiet()
    model = SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": DTYPES[precision]}
    )
    return lambda texts: np.asarray(
        model.encode(texts, batch_size=32, show_progress_bar=False), dtype=np.float32
    )


def bertfit_encoder(folder: Path, precision: str) -> Embed:
    embedder = load_encoder(str(folder), device="cpu", precision=precision)  # type: ignore[arg-type]
    return lambda texts: np.stack(list(embedder.embeddings(texts)))


BERT_BASE = {
    "model_type": "bert",
    "vocab_size": 21128,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}


def base_flops(count: int, length: int) -> int:
    """Operations of the matrix products of a BERT-base tagger for so many windows."""
    hidden, layers = 768, 12
    weights = layers * 12 * hidden * hidden + 3 * hidden  # attention, feed-forward, the head
    return count * length * (2 * weights + layers * 4 * length * hidden)


def base_shapes(precision: str, backend: str) -> Callable[[tuple[int, int]], None]:
    """A tagger of BERT-base's shape with random weights, run on windows of one length."""
    torch.manual_seed(0)
    model = build_classifier(BERT_BASE, ("O", "B-X", "I-X")).eval()
    forward: Forward
    if backend == "openvino":
        forward, batching = openvino_tagger(model, precision), Batching(pad_id=0)  # type: ignore[arg-type]
    elif backend == "torch":
        left = make_ready(model, CPU, precision)  # type: ignore[arg-type]
        forward, batching = torch_tagger(model, CPU, left), batching_of(model, CPU, 0)
    else:  # transformers with its weights in that precision
        model.to(DTYPES[precision])
        forward, batching = torch_tagger(model, CPU, "fp32"), Batching(pad_id=0)

    def run(shape: tuple[int, int]) -> None:
        count, length = shape
        with torch.inference_mode():
            forward(batching.batch([_random_window(length, i) for i in range(count)]))

    return run


def _random_window(length: int, seed: int) -> Window:
    ids = np.random.default_rng(seed).integers(1000, 20000, length).astype(np.int32)
    return Window(
        index=seed,
        input_ids=ids,
        units=np.array([(i, i + 1) for i in range(length)], dtype=np.int32),
        first_token=np.arange(length, dtype=np.int32),
        labels=None,
        owned=(0, length),
    )


def gemm(precision: str) -> Callable[[tuple[int, int]], None]:
    """One matrix product of a feed-forward layer of BERT-base, of all tokens of the windows."""
    weight = torch.randn(4 * 768, 768).to(DTYPES[precision])

    def run(shape: tuple[int, int]) -> None:
        states = torch.randn(shape[0] * shape[1], 768).to(weight.dtype)
        with torch.inference_mode():
            for __ in range(GEMM_TIMES):
                torch.nn.functional.linear(states, weight)

    return run


GEMM_TIMES = 20
