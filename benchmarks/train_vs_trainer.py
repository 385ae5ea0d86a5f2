"""Training speed and dev F1 against `transformers.Trainer`, on the same windows of CLUENER.

    python benchmarks/train_vs_trainer.py speed --model E5 --data ../shared/data/cluener
    python benchmarks/train_vs_trainer.py f1 --model E5 --data ../shared/data/cluener

`speed`: sentences per second at an effective batch of 16, in one process, in turns of ten steps, so
that a machine whose speed drifts slows all alike. Against (a) the Trainer with padding to 128 and
fp32, (b) the Trainer's best recipe: dynamic padding, bf16 autocast, batches of similar length.
`f1`: dev F1 of (b) and of bertfit after the same epochs on the first sentences, for several seeds.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import transformers
from transformers import (
    DataCollatorForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bertfit.config import JobConfig, job_config
from bertfit.data.formats import read
from bertfit.data.scores import Scorer
from bertfit.data.windows import windows
from bertfit.jobs import train as job_module
from bertfit.jobs.corpus import read_corpus
from bertfit.jobs.predict import Predictor, text_tokenizer
from bertfit.jobs.starting_point import starting_tagger
from bertfit.models.encoder import load_tokenizer
from bertfit.models.tagger import Tagger
from bertfit.types import IGNORED, Window

BATCH, WARM_UP, TURN = 16, 20, 10
RATE = 3e-4


class Stop(Exception):
    """Ends a contender that has done its steps."""


class Contender:
    """A training loop in a thread of its own, which runs `TURN` steps when it is let."""

    def __init__(self, name: str, run: Callable[[Callable[[], None]], None]) -> None:
        self.name = name
        self.times: list[float] = []
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._left = 0
        self._last = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._work, args=(run,), daemon=True)

    def turn(self) -> None:
        """Let it run `TURN` steps."""
        if not self._thread.is_alive():
            self._thread.start()
        self._left, self._last = TURN, time.perf_counter()
        self._go.release()
        self._done.acquire()

    def end(self) -> None:
        """Let it stop."""
        self._stopped = True
        self._go.release()
        self._thread.join()

    def _work(self, run: Callable[[Callable[[], None]], None]) -> None:
        self._go.acquire()
        try:
            run(self._step_done)
        except Stop:
            pass
        finally:
            self._done.release()

    def _step_done(self) -> None:
        now = time.perf_counter()
        self.times.append(now - self._last)
        self._left -= 1
        if self._left == 0:
            self._done.release()
            self._go.acquire()
            if self._stopped:
                raise Stop
            now = time.perf_counter()
        self._last = now


class AtStepEnd(TrainerCallback):
    """Tells a contender that the Trainer has finished a step."""

    def __init__(self, step_done: Callable[[], None]) -> None:
        self.step_done = step_done

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """See transformers."""
        self.step_done()


def job_of(args: argparse.Namespace, folder: str, seed: int) -> JobConfig:
    train_file = Path(folder) / "train.json"
    with (args.data / "train.json").open(encoding="utf-8") as file:
        lines = file.readlines()[: args.sentences]
    train_file.write_text("".join(lines), encoding="utf-8")
    return job_config(
        {
            "model": str(args.model),
            "train_file": train_file,
            "eval_file": args.data / "dev.json",
            "output_dir": Path(folder) / "run",
            "batch_size": BATCH,
            "learning_rate": RATE,
            "num_train_epochs": args.epochs,
            "seed": seed,
        }
    )


def features_of(tagger: Tagger, cut: Iterator[Window]) -> list[dict[str, list[int]]]:
    features = []
    for window in cut:
        labels = [IGNORED] * len(window.input_ids)
        for position, label in zip(window.first_token, window.labels, strict=True):
            labels[position] = int(label)
        features.append({"input_ids": window.input_ids.tolist(), "labels": labels})
    return features


def trainer_of(
    job: JobConfig, folder: str, *, best: bool, max_steps: int = -1
) -> tuple[Trainer, Tagger]:
    corpus = read_corpus(job, lambda message: None)
    torch.manual_seed(job.seed)
    tagger = starting_tagger(job, corpus, lambda message: None)
    cut = windows(
        corpus.train,
        text_tokenizer(tagger.tokenizer),
        scheme=corpus.scheme,
        max_length=tagger.max_length,
        overlap=tagger.overlap,
        split=corpus.split,
    )
    tokenizer = load_tokenizer(Path(job.model)).fast
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        num_train_epochs=job.num_train_epochs,
        max_steps=max_steps,
        warmup_steps=0.1,
        weight_decay=0.01,
        bf16=best,
        train_sampling_strategy="group_by_length" if best else "random",
        optim="adamw_torch_fused" if best else "adamw_torch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        seed=job.seed,
    )
    collator = DataCollatorForTokenClassification(
        tokenizer, **({} if best else {"padding": "max_length", "max_length": 128})
    )
    trainer = Trainer(
        model=tagger.model,
        args=arguments,
        train_dataset=features_of(tagger, cut),
        data_collator=collator,
    )
    return trainer, tagger


def run_trainer(job: JobConfig, best: bool, max_steps: int) -> Callable[..., None]:
    def run(step_done: Callable[[], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainer, __ = trainer_of(job, folder, best=best, max_steps=max_steps)
            trainer.add_callback(AtStepEnd(step_done))
            trainer.train()

    return run


def run_bertfit(job: JobConfig) -> Callable[..., None]:
    def run(step_done: Callable[[], None]) -> None:
        original = job_module._Training._run_step

        def step(self: object, *arguments: object) -> None:
            original(self, *arguments)
            step_done()

        job_module._Training._run_step = step
        try:
            job_module.train(job, progress=False, say=lambda message: None)
        finally:
            job_module._Training._run_step = original

    return run


def speed(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(args, folder, seed=42)
        many = 10 * (args.steps + WARM_UP)
        contenders = [
            Contender("bertfit", run_bertfit(job)),
            Contender("Trainer (a) pad 128, fp32", run_trainer(job, False, many)),
            Contender("Trainer (b) dynamic, bf16, by length", run_trainer(job, True, many)),
        ]
        for number in range((args.steps + WARM_UP) // TURN):
            for contender in contenders:
                contender.turn()
            shown = "  ".join(
                f"{c.name} {BATCH * len(c.times) / sum(c.times):.1f}/s" for c in contenders
            )
            print(f"turn {number + 1}: {shown}", file=sys.stderr)
        for contender in contenders:
            contender.end()
    rates = {}
    for contender in contenders:
        timed = contender.times[WARM_UP:]
        rates[contender.name] = BATCH * len(timed) / sum(timed)
        print(
            f"{contender.name:40s} {rates[contender.name]:6.1f} sentences/s "
            f"(median step {statistics.median(timed):.3f} s)"
        )
    ours, a, b = rates.values()
    print(f"ratio to (a): {ours / a:.2f}   ratio to (b): {ours / b:.2f}")
    return {"sentences_per_second": rates, "ratio_a": ours / a, "ratio_b": ours / b}


def f1(args: argparse.Namespace) -> dict[str, object]:
    dev = list(read(args.data / "dev.json"))
    results: dict[str, list[float]] = {"bertfit": [], "Trainer (b)": []}
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            job = job_of(args, folder, seed)
            last: list[float] = []
            report = job_module.train(job, progress=False, say=lambda message: None)
            document = json.loads((report.output_dir / "scores.json").read_text())
            last = [row["f1"] for row in document["evaluations"]]
            results["bertfit"].append(last[-1])
        with tempfile.TemporaryDirectory() as folder:
            trainer, tagger = trainer_of(job_of(args, folder, seed), folder, best=True)
            trainer.train()
            predictor = Predictor(tagger, device=torch.device("cpu"), precision="bf16")
            scorer = Scorer()
            for example, found in predictor.annotate(dev):
                scorer.add(example.entities or (), found)
            results["Trainer (b)"].append(scorer.scores().micro.f1)
        print(
            f"seed {seed}: { ({k: round(v[-1], 4) for k, v in results.items()}) }", file=sys.stderr
        )
    for name, values in results.items():
        spread = max(values) - min(values)
        print(f"{name:12s} F1 mean {statistics.mean(values):.4f}  spread {spread:.4f}  {values}")
    return {"f1": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("speed", "f1"))
    parser.add_argument(
        "--model", type=Path, required=True, help="E5-small folder, zh-en vocabulary"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with train.json, dev.json")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    figures = speed(args) if args.what == "speed" else f1(args)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
