"""Evidence of series by a fitted estimator: predictions, traced with what uncertainty and settings say of them.

    fitted RAxSSClassifier -> UncertaintySummary under the current settings
    fitted RAxSSClassifier, series -> SeriesEvidence of each, one after the other

classifier.py calls it for `explain`; raxss.explain.tracing makes evidence of a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from raxss.data.series import Series
from raxss.data.training_overlap import TrainingRecord
from raxss.explain.series_evidence import SeriesEvidence
from raxss.explain.tracing import trace_prediction
from raxss.method.inference import Predictor
from raxss.method.window_scorer import score_windows
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.decision import DecisionThreshold
from raxss.uncertainty.summary import UncertaintySummary

Fitted = Any  # a fitted RAxSSClassifier, whose module imports this one


def summary_of(
    model: Fitted, calibration: Calibration | None, decision: DecisionThreshold | None
) -> UncertaintySummary:
    """Validation report and OOD detector of a model, with the calibration and the threshold that are in use."""
    report, now = model.validation_report_, model.current_config
    validated = model.config_.score_hash if report is None else report.settings
    return UncertaintySummary(
        validation_report=report,
        ood_detector=model.ood_detector_,
        alpha=float(model.config.calibration.conformal_alpha),
        calibrated=calibration is not None,
        series_calibration=calibration if model.calibration_level_ == "series" else None,
        changed=validated != now.score_hash,
        rates=model.training_data_["rates"],
        seen=TrainingRecord.of(model.training_data_),
        decision=decision,
        decision_changed=decision is not None and decision.settings not in ("", now.decision_hash),
        gap_finding=model.gap_finding_,
    )


def traced_settings(model: Fitted, predictor: Predictor, summary: UncertaintySummary) -> dict[str, Any]:
    """Settings that evidence names, beside those of retrieval and weighting."""
    settings: dict[str, Any] = {"config_hash": model.current_config.hash}
    calibration = predictor.calibration or predictor.series_calibration
    if calibration is not None:
        settings["calibration"] = calibration.method
        if model.calibration_level_ == "series":
            settings["calibration_level"] = "series"
    if model.config_.backbone.share_missing:
        settings["share_missing"] = True
    if predictor.takes_context:
        settings["context"] = True
    if model.projection and model.space == "features":
        settings["projection"] = model.projection
    if summary.has_sets:
        settings["conformal_alpha"] = summary.alpha
        settings["conformal_threshold"] = summary.threshold(summary.alpha)
    if summary.decision is not None:
        settings["decision_factors"] = summary.decision.factors.tolist()
    return settings


def traced(
    model: Fitted,
    predictor: Predictor,
    series: list[Series],
    on_progress: Callable[[float], None] | None,
) -> Iterator[SeriesEvidence]:
    """Evidence of each series, with the memory of one."""
    summary = model.uncertainty_summary()
    settings = traced_settings(model, predictor, summary)
    neutral = predictor.with_neutral_context() if predictor.takes_context else None
    gate = getattr(model.backbone_, "disturbed_share", None)
    with summary.seen.states(series) as states:
        predictions = predictor.predictions(series, on_progress=on_progress)
        for prediction, seen in zip(predictions, states, strict=True):
            scored = summary.score(prediction, seen_in_training=seen)
            yield trace_prediction(
                prediction,
                model.classes_,
                settings=settings,
                notes=scored.notes,
                interval=scored.interval,
                prediction_set=scored.prediction_set,
                predicted=scored.predicted,
                seen_in_training=scored.seen_in_training,
                without_context=None
                if neutral is None
                else next(neutral.predictions([prediction.series], with_lists=False)),
                disturbed=None
                if gate is None
                else score_windows(gate, prediction.windows, device=predictor.device)[0][:, 0].numpy(),
            )
            del prediction  # frees its neighbour lists before the next is computed
