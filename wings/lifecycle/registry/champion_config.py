"""The configuration that a registered model's champion was made from, if it can be trained again."""

from pathlib import Path

from configs.frameworks import trainings
from configs.loader import validated
from configs.schema import PipelineConfig
from gauntlet.bundle.bundle import REPORT, Bundle
from gauntlet.bundle.loading import refusals
from gauntlet.core.errors import ConfigError
from wings.lifecycle.registry.bundle_cache import ResolvedBundle
from wings.lifecycle.registry.origin import report_in


def champion_config(champion: ResolvedBundle) -> PipelineConfig:
    """Return the configuration of the run that made a champion.

    Raises:
        ConfigError: when there is none that may be used and could train, or its model is no classifier.
    """
    bundle = Bundle.open(champion.folder)
    report, who = report_in(bundle), f"{champion.name}: its champion, version {champion.version},"
    for problem in refusals(bundle):
        raise ConfigError(f"{who} may not be trained again: {problem}")
    if report is None or not report.config:
        fix = "Fix: promote a run of a configuration that trains: gauntlet run CONFIG, then gauntlet promote RUN"
        raise ConfigError(f"{who} has no configuration in its {REPORT}, so it cannot be trained again. {fix}")
    config = validated(Path(f"{champion.name}@champion/{REPORT}"), dict(report.config))
    if not config.train.from_scratch:
        trained = ", ".join(kind for kind, training in trainings().items() if training.from_scratch)
        raise ConfigError(
            f"{who} was brought as it is (train.kind {config.train.kind}): its run has nothing to train. Needed: a run "
            f"that trains (train.kind {trained}). Fix: train it where it came from, bring it with gauntlet run, and "
            "promote that run"
        )
    if bundle.contract.signature.task != "classification" or not bundle.contract.signature.labels:
        task = bundle.contract.signature.task
        raise ConfigError(f"{who} is a model for {task}; only classifiers with named classes take labels as feedback")
    return config
