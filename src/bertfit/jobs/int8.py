"""8-bit integers, where they were asked for and cost little: F1 on annotated texts decides."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bertfit.data.formats import ReadOptions
from bertfit.engine.onnx_backend import onnx_tagger
from bertfit.errors import ConfigError
from bertfit.jobs.evaluate import evaluate
from bertfit.jobs.predict import Predictor, load
from bertfit.language import _

MAX_F1_LOSS = 0.005


def load_int8(
    model: str,
    dev_files: Sequence[Path | str],
    *,
    max_f1_loss: float = MAX_F1_LOSS,
    options: ReadOptions | None = None,
    constrained: bool = True,
    trust_remote_code: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> Predictor:
    """Load a tagger that multiplies in 8-bit integers, with ONNX Runtime on the processor.

    The model is scored on annotated texts as it is and in 8 bits first.

    Args:
        model: run folder, model folder or hub id.
        dev_files: annotated texts, not those that it was trained on.
        max_f1_loss: so much F1 may be lost, of 1.
        options: how to read them; None looks at the content.
        constrained: False allows tag sequences that the scheme forbids.
        trust_remote_code: run the Python code that a model brings.
        progress: show progress bars on stderr.
        say: told both scores.

    Raises:
        ConfigError: more F1 is lost, there is none to lose, `max_f1_loss` is none, or ONNX Runtime
            is not installed.
        DataError: nothing in the files is annotated.
        ModelError: the model cannot be found or used.
    """
    if not 0 <= max_f1_loss <= 1:  # NaN too, which no loss is above
        raise ConfigError(
            _("--max-f1-loss {most:g}: say 0 to 1, the F1 that may be lost.").format(
                most=max_f1_loss
            )
        )
    predictor = load(
        model,
        device="cpu",
        precision="fp32",
        constrained=constrained,
        trust_remote_code=trust_remote_code,
    )
    in_8_bits = onnx_tagger(predictor.model, int8=True)
    files = ", ".join(map(str, dev_files))
    whole = _f1(predictor, dev_files, options, progress, say)
    if whole == 0:
        # A fall from 0 to 0 would pass, whatever 8 bits do to the model.
        raise ConfigError(
            _(
                "--int8: F1 on {files} is 0 before anything is rounded, so it says nothing of "
                "what 8 bits cost. Give a labelled file with the labels of the model ({labels}), "
                "or train the model longer."
            ).format(files=files, labels=", ".join(predictor.scheme.labels))
        )
    predictor.compute_with(in_8_bits)
    predictor.number_format = "int8"
    rounded = _f1(predictor, dev_files, options, progress, lambda message: None)
    if whole - rounded > max_f1_loss:
        raise ConfigError(
            _(
                "--int8: F1 on {files} falls from {whole:.4f} to {rounded:.4f}, by more than "
                "{most:g}. Leave --int8 out, or allow more with --max-f1-loss."
            ).format(files=files, whole=whole, rounded=rounded, most=max_f1_loss)
        )
    say(
        _("--int8: F1 on {files} is {rounded:.4f}, and {whole:.4f} in fp32.").format(
            files=files, whole=whole, rounded=rounded
        )
    )
    return predictor


def _f1(
    predictor: Predictor,
    files: Sequence[Path | str],
    options: ReadOptions | None,
    progress: bool,
    say: Callable[[str], None],
) -> float:
    report = evaluate(
        predictor, list(map(Path, files)), options or ReadOptions(), progress=progress, say=say
    )
    return report.scores.micro.f1
