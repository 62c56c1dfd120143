"""How Prefect shows a flow that failed: with its reason and fix, and not as an exception."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from prefect.context import FlowRunContext
from prefect.states import Failed

from gauntlet.core.errors import PipelineError

ENGINES = ("prefect.flow_runs", "prefect.task_runs")
"""The loggers of Prefect's engines."""
Inputs = ParamSpec("Inputs")
Result = TypeVar("Result")


def fails_with_its_reason(function: Callable[Inputs, Result]) -> Callable[Inputs, Result]:
    """Let a flow or task end with an error of this project as its message, without a stack trace in its log.

    Whoever calls it gets the error raised, as without this.
    """

    @wraps(function)
    def ended(*args: Inputs.args, **inputs: Inputs.kwargs) -> Any:
        try:
            return function(*args, **inputs)
        except PipelineError as error:
            if FlowRunContext.get() is None:  # the plain function was called
                raise
            return Failed(message=str(error), data=error)

    for name in ENGINES:
        logging.getLogger(name).addFilter(_is_no_stack_trace)
    return cast("Callable[Inputs, Result]", ended)


def _is_no_stack_trace(record: logging.LogRecord) -> bool:
    """Return whether a record is another than a failed gate's stack trace, or "NoneType: None"; its state says why."""
    return not record.exc_info or not isinstance(record.exc_info[1], PipelineError | None)
